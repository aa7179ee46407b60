"""Sums that nobody sees the parts of (Bonawitz et al., 2017; Bell et al., 2020).

Every client adds masks to its integers. Each mask is either shared by two clients, one adding and
the other subtracting it, or the client's own. The server learns the sum alone: pairs cancel, and of
each client that took part others hand out shares of its own mask, of each that dropped out shares
of the key to its pairs; never both, and never of another set of clients than was signed for.

A session is one round. It goes through these phases, each an answer of every client:

    keys      public keys for this session, signed with the client's identity
    shares    shares of the secrets behind them, sealed for each neighbour
    ballot    the client's integers, masked
    consent   a signature under the set of clients whose ballots arrived
    reveal    shares that unmask the sum of just these

The last three repeat for every ballot of a session: a ballot has secrets of its own. `member` is a
client's side, `teller` the server's; both are pure, and somebody else carries what they say.
"""
