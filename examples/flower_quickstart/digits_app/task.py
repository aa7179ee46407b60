"""The model, the data and the training loop: nothing of it knows about federations."""

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

TEST = 360  # examples that no client holds


class Net(nn.Module):
    """Two convolutions and two linear layers, 0.55 million weights."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.ReLU(),
        )
        self.classifier = nn.Sequential(nn.Linear(64 * 4 * 4, 512), nn.ReLU(), nn.Linear(512, 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).flatten(1))


def load_all() -> TensorDataset:
    """The digits that scikit-learn carries, in an order that everybody shares."""
    images, labels = load_digits(return_X_y=True)
    x = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 16
    y = torch.tensor(labels, dtype=torch.int64)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    return TensorDataset(x[order], y[order])


def load_data(partition: int, partitions: int) -> tuple[DataLoader, DataLoader]:
    """One client's batches: four fifths to train on, the rest to test on."""
    data = load_all()
    mine = list(range(TEST + partition, len(data), partitions))
    split = len(mine) * 4 // 5
    train = torch.utils.data.Subset(data, mine[:split])
    test = torch.utils.data.Subset(data, mine[split:])
    return DataLoader(train, batch_size=32, shuffle=True), DataLoader(test, batch_size=128)


def load_test_data() -> DataLoader:
    """The server's own examples."""
    return DataLoader(torch.utils.data.Subset(load_all(), range(TEST)), batch_size=128)


def train(net: Net, batches: DataLoader, epochs: int, learning_rate: float) -> float:
    """Train in place; the mean loss."""
    optimizer = torch.optim.SGD(net.parameters(), lr=learning_rate, momentum=0.9)
    net.train()
    losses = []
    for _ in range(epochs):
        for x, y in batches:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return sum(losses) / len(losses)


def test(net: Net, batches: DataLoader) -> tuple[float, float]:
    """Loss and accuracy."""
    net.eval()
    loss = 0.0
    right = 0
    count = 0
    with torch.no_grad():
        for x, y in batches:
            scores = net(x)
            loss += nn.functional.cross_entropy(scores, y, reduction="sum").item()
            right += int((scores.argmax(1) == y).sum())
            count += len(y)
    return loss / count, right / count
