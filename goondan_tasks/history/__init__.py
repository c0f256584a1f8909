"""Steps and Turns: the record of an open Step, its tool calls, and the history of its Turn in Redis."""

from goondan_tasks.history.history import PastCall as PastCall
from goondan_tasks.history.history import TurnHistory as TurnHistory
from goondan_tasks.history.records import KeptStep as KeptStep
from goondan_tasks.history.records import LeftTools as LeftTools
from goondan_tasks.history.records import RecordedStep as RecordedStep
from goondan_tasks.history.records import StepInput as StepInput
from goondan_tasks.history.records import StepRecord as StepRecord
from goondan_tasks.history.records import StepTool as StepTool
from goondan_tasks.history.records import TurnEntry as TurnEntry
from goondan_tasks.history.replies import ReplyCalls as ReplyCalls
from goondan_tasks.history.replies import StepCall as StepCall
from goondan_tasks.history.replies import TurnCalls as TurnCalls
from goondan_tasks.history.replies import opening_id as opening_id
from goondan_tasks.history.store import StepStore as StepStore
from goondan_tasks.history.store import digest_of_catalog as digest_of_catalog
