"""Steps and Turns: the record of an open Step, its tool calls, and the history of its Turn in Redis."""

from goondan_tasks.steps.history import PastCall as PastCall
from goondan_tasks.steps.history import TurnHistory as TurnHistory
from goondan_tasks.steps.records import KeptStep as KeptStep
from goondan_tasks.steps.records import LeftTools as LeftTools
from goondan_tasks.steps.records import RecordedStep as RecordedStep
from goondan_tasks.steps.records import StepInput as StepInput
from goondan_tasks.steps.records import StepRecord as StepRecord
from goondan_tasks.steps.records import StepTool as StepTool
from goondan_tasks.steps.records import TurnEntry as TurnEntry
from goondan_tasks.steps.replies import ReplyCalls as ReplyCalls
from goondan_tasks.steps.replies import StepCall as StepCall
from goondan_tasks.steps.replies import TurnCalls as TurnCalls
from goondan_tasks.steps.replies import opening_id as opening_id
from goondan_tasks.steps.store import StepStore as StepStore
from goondan_tasks.steps.store import digest_of_catalog as digest_of_catalog
