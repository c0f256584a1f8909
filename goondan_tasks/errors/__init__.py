"""The error tree: every failure that a caller can see, each with a code.

::

    GoondanError
    ├── ToolError                       E_TOOL                 (what a handler raises; shown to the model)
    │   ├── ToolNotInCatalogError       E_TOOL_NOT_IN_CATALOG
    │   ├── ToolNotFoundError           E_TOOL_NOT_FOUND
    │   ├── ToolInputValidationError    E_TOOL_INVALID_ARGS
    │   ├── ToolTimeoutError            E_TOOL_TIMEOUT
    │   ├── ToolExpiredError            E_TOOL_EXPIRED
    │   ├── ToolCancelledError          E_TOOL_CANCELLED
    │   ├── ToolCrashedError            E_TOOL_CRASHED
    │   ├── LimitError                  E_LIMIT
    │   ├── ApprovalDeniedError         E_APPROVAL_DENIED
    │   ├── MiddlewareError             E_MIDDLEWARE
    │   ├── McpError                    E_MCP
    │   ├── ToolPoisonedError           E_TOOL_POISONED
    │   ├── ToolOutcomeUnknownError     E_TOOL_OUTCOME_UNKNOWN
    │   ├── ToolOutputError             E_TOOL_BAD_OUTPUT
    │   ├── OutputNotStoredError        E_OUTPUT_NOT_STORED
    │   ├── OutputGoneError             E_OUTPUT_GONE
    │   ├── PathOutsideWorkdirError     E_PATH_OUTSIDE_WORKDIR
    │   └── AddressForbiddenError       E_ADDRESS_FORBIDDEN
    ├── ToolCallConflictError           E_TOOL_CALL_CONFLICT
    ├── PayloadTooLargeError            E_PAYLOAD_TOO_LARGE
    ├── CallNotFoundError               E_CALL_NOT_FOUND
    ├── NoOutputError                   E_CALL_NO_OUTPUT
    ├── NotReplayableError              E_CALL_NOT_REPLAYABLE
    ├── CallClosedError                 E_CALL_CLOSED
    ├── CallNotPendingError             E_CALL_NOT_PENDING
    ├── AgentHasEntryError              E_AGENT_HAS_ENTRY
    ├── InstanceNotFoundError           E_INSTANCE_NOT_FOUND
    ├── InstanceBusyError               E_INSTANCE_BUSY
    ├── HandoffError                    E_AGENT_FAILED         (what a request to an agent raises)
    │   ├── AgentNotFoundError          E_AGENT_NOT_FOUND
    │   ├── AgentUnavailableError       E_AGENT_UNAVAILABLE
    │   ├── AgentOutcomeUnknownError    E_AGENT_OUTCOME_UNKNOWN
    │   ├── HandoffCycleError           E_HANDOFF_CYCLE
    │   ├── HandoffDepthError           E_HANDOFF_DEPTH
    │   └── HandoffTimeoutError         E_HANDOFF_TIMEOUT
    ├── BrokerUnreachableError          E_BROKER_UNREACHABLE
    ├── ConfigError                     E_CONFIG_*             (the code is given with each one)
    │   ├── ExtensionLoadError          E_EXT_LOAD
    │   └── ExtensionInitError          E_EXT_INIT
    ├── BundleRevisionUnavailableError  E_BUNDLE_REVISION_UNAVAILABLE
    ├── StepLimitError                  E_STEP_LIMIT
    └── WaitTimeout                     (no code: waiting ended, the call goes on)

The class's first docstring line is its default message; ``suggestion`` says what to do next.
Sources: 001 §12.4.1, 003 §8, 004 ToolCallResultError.
"""

from goondan_tasks.errors.call_errors import (
    AgentHasEntryError,
    BrokerUnreachableError,
    CallClosedError,
    CallNotFoundError,
    CallNotPendingError,
    InstanceBusyError,
    InstanceNotFoundError,
    NoOutputError,
    NotReplayableError,
    PayloadTooLargeError,
    StepLimitError,
    ToolCallConflictError,
    WaitTimeout,
)
from goondan_tasks.errors.config_errors import (
    BundleRevisionUnavailableError,
    ConfigError,
    ExtensionInitError,
    ExtensionLoadError,
)
from goondan_tasks.errors.goondan_error import (
    GoondanError,
)
from goondan_tasks.errors.handoff_errors import (
    AgentNotFoundError,
    AgentOutcomeUnknownError,
    AgentUnavailableError,
    HandoffCycleError,
    HandoffDepthError,
    HandoffError,
    HandoffTimeoutError,
)
from goondan_tasks.errors.tool_errors import (
    AddressForbiddenError,
    ApprovalDeniedError,
    LimitError,
    McpError,
    MiddlewareError,
    OutputGoneError,
    OutputNotStoredError,
    PathOutsideWorkdirError,
    ToolCancelledError,
    ToolCrashedError,
    ToolError,
    ToolExpiredError,
    ToolInputValidationError,
    ToolNotFoundError,
    ToolNotInCatalogError,
    ToolOutcomeUnknownError,
    ToolOutputError,
    ToolPoisonedError,
    ToolTimeoutError,
)

__all__ = [
    "AddressForbiddenError",
    "AgentHasEntryError",
    "AgentNotFoundError",
    "AgentOutcomeUnknownError",
    "AgentUnavailableError",
    "ApprovalDeniedError",
    "BrokerUnreachableError",
    "BundleRevisionUnavailableError",
    "CallClosedError",
    "CallNotFoundError",
    "CallNotPendingError",
    "ConfigError",
    "ExtensionInitError",
    "ExtensionLoadError",
    "GoondanError",
    "HandoffCycleError",
    "HandoffDepthError",
    "HandoffError",
    "HandoffTimeoutError",
    "InstanceBusyError",
    "InstanceNotFoundError",
    "LimitError",
    "McpError",
    "MiddlewareError",
    "NoOutputError",
    "NotReplayableError",
    "OutputGoneError",
    "OutputNotStoredError",
    "PathOutsideWorkdirError",
    "PayloadTooLargeError",
    "StepLimitError",
    "ToolCallConflictError",
    "ToolCancelledError",
    "ToolCrashedError",
    "ToolError",
    "ToolExpiredError",
    "ToolInputValidationError",
    "ToolNotFoundError",
    "ToolNotInCatalogError",
    "ToolOutcomeUnknownError",
    "ToolOutputError",
    "ToolPoisonedError",
    "ToolTimeoutError",
    "WaitTimeout",
]
