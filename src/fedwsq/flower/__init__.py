"""Past one machine: the same federation on Flower's SuperLink and SuperNodes.

The only place that imports flwr, and only in the modules that use it: `pip install
'fedwsq[flower]'`.
"""
