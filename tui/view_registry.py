"""Names every view of the console.

Invariant: a view that is not named here has no actions.
"""

from __future__ import annotations

from tui.views.alerts import Alerts
from tui.views.calls import CallPage, Calls, ToolErrors
from tui.views.detail_pages import AlertPage, DetailPage, UnitPage
from tui.views.evaluations import ComparisonPage, EvaluationPage, Evaluations
from tui.views.events import Events
from tui.views.fleet import Fleet
from tui.views.hosts import HostPage, Hosts
from tui.views.logs import Logs
from tui.views.other_models import OtherModelPage, OtherModels
from tui.views.overview import Overview
from tui.views.query_views import QueryPage, StepPage
from tui.views.records import GroupPage, RecordPage, Records, TokenTree
from tui.views.replays import ReplayPage, Replays
from tui.views.reviews import Reviews
from tui.views.runs import Runs
from tui.views.stored_tables import AccountPage, Checkpoints, Keys, TaskPage, Tasks
from tui.views.tools import Tools, ToolServers, ToolSessions
from tui.views.training import Training
from tui.views.tuning import KnobPage, Tuning
from tui.views.view import View

SCREENS: tuple[type[View], ...] = (Overview, Fleet, Events, Alerts, Tuning, Logs, Records, Training, Runs)
"""The views that have a digit."""
_PAGES: tuple[type[View], ...] = (
    *(DetailPage, UnitPage, AlertPage, KnobPage, QueryPage, StepPage, TaskPage, RecordPage, GroupPage, AccountPage),
    *(Tasks, Checkpoints, Keys, ToolErrors, Calls, CallPage, TokenTree, Replays, ReplayPage, Reviews),
    *(ToolServers, Tools, ToolSessions, Hosts, HostPage),
    *(Evaluations, EvaluationPage, ComparisonPage, OtherModels, OtherModelPage),
)
KINDS: dict[str, type[View]] = {kind.name_in_registry: kind for kind in (*SCREENS, *_PAGES)}
TABLES = (
    *("fleet", "events", "alerts", "tuning", "records", "training", "runs"),
    *("tasks", "checkpoints", "keys", "tool-errors", "calls", "token-tree", "replays", "reviews"),
    *("tool-servers", "tools", "tool-sessions", "hosts", "evaluations", "other-models"),
)
