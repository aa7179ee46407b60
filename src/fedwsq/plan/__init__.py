"""The frozen settings of a run: what they are, how TOML becomes them, published methods by name."""

from fedwsq.plan.aggregation import WEIGH, Aggregation
from fedwsq.plan.build import Overrides, load_plan, make_plan
from fedwsq.plan.document import methods_document
from fedwsq.plan.dump import dump_plan, plan_digest, plan_settings
from fedwsq.plan.methods import METHODS, Method
from fedwsq.plan.paths import PLACES, locate, places
from fedwsq.plan.read import parse_override, read_config, shipped_configs
from fedwsq.plan.settings import BuildModel, DataPlan, LoadData, ModelPlan, Plan, SplitData
from fedwsq.plan.tables import TABLES

__all__ = [
    "METHODS",
    "PLACES",
    "TABLES",
    "WEIGH",
    "Aggregation",
    "BuildModel",
    "DataPlan",
    "LoadData",
    "Method",
    "ModelPlan",
    "Overrides",
    "Plan",
    "SplitData",
    "dump_plan",
    "load_plan",
    "locate",
    "make_plan",
    "methods_document",
    "parse_override",
    "places",
    "plan_digest",
    "plan_settings",
    "read_config",
    "shipped_configs",
]
