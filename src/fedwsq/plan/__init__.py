"""The frozen settings of a run: what they are, how TOML becomes them, published methods by name."""

import typing

from fedwsq.core import lazy

# Methods and shipped configs are plain data, to be had without torch. As in `fedwsq/__init__.py`.
_HOMES = {
    "fedwsq.plan.aggregation": "WEIGH Aggregation",
    "fedwsq.plan.bounds": "Bounds",
    "fedwsq.plan.build": "Overrides load_plan make_plan",
    "fedwsq.plan.combine": "COMBINES Combine",
    "fedwsq.plan.document": "methods_document",
    "fedwsq.plan.dump": "dump_plan entry_settings plan_digest plan_settings",
    "fedwsq.plan.methods": "METHODS Method",
    "fedwsq.plan.paths": "PLACES locate places",
    "fedwsq.plan.privacy": "Privacy",
    "fedwsq.plan.read": "code_named parse_override parse_overrides read_config shipped_configs",
    "fedwsq.plan.settings": "BuildModel DataPlan LoadData ModelPlan Plan RecordPlan SplitData",
    "fedwsq.plan.tables": "TABLES importing_only",
}

if typing.TYPE_CHECKING:
    from fedwsq.plan.aggregation import WEIGH, Aggregation
    from fedwsq.plan.bounds import Bounds
    from fedwsq.plan.build import Overrides, load_plan, make_plan
    from fedwsq.plan.combine import COMBINES, Combine
    from fedwsq.plan.document import methods_document
    from fedwsq.plan.dump import dump_plan, entry_settings, plan_digest, plan_settings
    from fedwsq.plan.methods import METHODS, Method
    from fedwsq.plan.paths import PLACES, locate, places
    from fedwsq.plan.privacy import Privacy
    from fedwsq.plan.read import (
        code_named,
        parse_override,
        parse_overrides,
        read_config,
        shipped_configs,
    )
    from fedwsq.plan.settings import (
        BuildModel,
        DataPlan,
        LoadData,
        ModelPlan,
        Plan,
        RecordPlan,
        SplitData,
    )
    from fedwsq.plan.tables import TABLES, importing_only
else:
    __getattr__ = lazy.lazily(__name__, _HOMES)

__all__ = [
    "COMBINES",
    "METHODS",
    "PLACES",
    "TABLES",
    "WEIGH",
    "Aggregation",
    "Bounds",
    "BuildModel",
    "Combine",
    "DataPlan",
    "LoadData",
    "Method",
    "ModelPlan",
    "Overrides",
    "Plan",
    "Privacy",
    "RecordPlan",
    "SplitData",
    "code_named",
    "dump_plan",
    "entry_settings",
    "importing_only",
    "load_plan",
    "locate",
    "make_plan",
    "methods_document",
    "parse_override",
    "parse_overrides",
    "places",
    "plan_digest",
    "plan_settings",
    "read_config",
    "shipped_configs",
]
