package module

// Guidance is what a calling model may be told about a code when the error
// carries no guidance of its own, "" when there is nothing useful to say. It is
// never put into an [Error] by itself: the wire form stays sparse, and an
// adapter for models asks here (protocol §8.1, ai_guidance).
func (c Code) Guidance() string { return codeGuidance[c] }

// GuidanceOr returns the error's own guidance, or else its code's.
func (e *Error) GuidanceOr() string {
	if e.AIGuidance != "" {
		return e.AIGuidance
	}
	return e.Code.Guidance()
}

// codeGuidance is never written after construction. It names no value of a call.
var codeGuidance = map[Code]string{
	CodeModuleNotFound:        "No module has this ID. List the modules and call one that exists.",
	CodeModuleDisabled:        "The module is switched off. Do not retry; tell the user or use another module.",
	CodeModuleTimeout:         "The module took too long. Retry later, with less work, or with a longer timeout.",
	CodeInvalidModuleID:       "The module ID is malformed. Use lower-case segments joined by dots, as in the module list.",
	CodeSchemaValidation:      "The inputs do not fit the module's input schema. Correct the fields in details.errors and call again.",
	CodeInvalidInput:          "The request is malformed. Correct it as the message says and call again.",
	CodeACLDenied:             "This caller may not call this module. Do not retry; ask the user for access.",
	CodeApprovalDenied:        "A person or policy refused this call. Do not retry it unchanged; ask the user.",
	CodeApprovalTimeout:       "Nobody decided in time. Ask the user to approve, then call again.",
	CodeApprovalPending:       "A person has to decide first. When it is approved, repeat the call with the same inputs and the approval token.",
	CodeCallDepthExceeded:     "The chain of nested calls is too deep. Call the module from further up.",
	CodeCircularCall:          "The call would call itself. Break the cycle.",
	CodeCallFrequencyExceeded: "The module was called too often in one chain. Stop repeating the call.",
	CodeCircuitBreakerOpen:    "The module has failed too often lately. Wait for details.retry_after_ms before calling again.",
	CodeExecutionCancelled:    "The call was cancelled. Call again only if its result is still wanted.",
	CodeBusOverloaded:         "Every node that hosts the module is busy. Retry after a short delay.",
	CodeBusNoResponders:       "No node hosts the module right now. Retry after a short delay.",
	CodeTaskLimitExceeded:     "Too many tasks are running. Wait for some to finish, then submit again.",
}
