package module

import "time"

// Severities of an Event.
const (
	SeverityInfo  = "info"
	SeverityWarn  = "warn"
	SeverityError = "error"
	SeverityFatal = "fatal"
)

// Types of the events the executor and the registry raise. The prefix
// "apcore." is reserved to the framework.
const (
	EventModuleRegistered           = "apcore.registry.module_registered"
	EventModuleUnregistered         = "apcore.registry.module_unregistered"
	EventModuleLoadFailed           = "apcore.registry.module_load_failed"
	EventACLDenied                  = "apcore.acl.denied"
	EventApprovalDecision           = "apcore.approval.decision"
	EventPolicyOverride             = "apcore.policy.override"
	EventStreamPostValidationFailed = "apcore.stream.post_validation_failed"

	// Of the control modules.
	EventModuleToggled  = "apcore.module.toggled"
	EventModuleReloaded = "apcore.module.reloaded"
	EventConfigUpdated  = "apcore.config.updated"
)

// Event is something worth telling an operator that is not the result of a
// call: a denial, a decision, a module that came or went. It never carries
// inputs or outputs, and nothing sensitive.
//
// A producer hands an Event to a function of its options and forgets it; the
// function must not block and must not keep the producer from going on.
// Delivery, retries and subscribers belong to whoever supplied the function.
type Event struct {
	// Type is apcore.<subsystem>.<event> for events of the framework, any
	// other dotted name for those of an application.
	Type string

	// ModuleID is the module the event is about, "" when there is none.
	ModuleID string

	// Severity is one of SeverityInfo, SeverityWarn, SeverityError and
	// SeverityFatal.
	Severity string

	// At is when it happened, UTC.
	At time.Time

	// Data holds the fields of this type of event, JSON-shaped. It is
	// shared by every reader and must not be changed.
	Data map[string]any
}
