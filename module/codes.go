package module

import (
	"iter"
	"maps"
	"slices"
)

// Code names one way of failing. Programs switch on it; it never changes on
// the way through processes.
type Code string

// Codes of the executor, the registry, schemas, ACL, approval and
// configuration (protocol §8.2).
const (
	CodeConfigNotFound             Code = "CONFIG_NOT_FOUND"
	CodeConfigInvalid              Code = "CONFIG_INVALID"
	CodeConfigBindError            Code = "CONFIG_BIND_ERROR"
	CodeConfigMountError           Code = "CONFIG_MOUNT_ERROR"
	CodeConfigNamespaceDuplicate   Code = "CONFIG_NAMESPACE_DUPLICATE"
	CodeConfigNamespaceReserved    Code = "CONFIG_NAMESPACE_RESERVED"
	CodeConfigEnvPrefixConflict    Code = "CONFIG_ENV_PREFIX_CONFLICT"
	CodeConfigEnvMapConflict       Code = "CONFIG_ENV_MAP_CONFLICT"
	CodeConfigKeyRestricted        Code = "CONFIG_KEY_RESTRICTED"
	CodeModuleNotFound             Code = "MODULE_NOT_FOUND"
	CodeModuleLoadError            Code = "MODULE_LOAD_ERROR"
	CodeModuleExecuteError         Code = "MODULE_EXECUTE_ERROR"
	CodeModuleTimeout              Code = "MODULE_TIMEOUT"
	CodeModuleDisabled             Code = "MODULE_DISABLED"
	CodeModuleIDConflict           Code = "MODULE_ID_CONFLICT"
	CodeModuleReloadConflict       Code = "MODULE_RELOAD_CONFLICT"
	CodeDuplicateModuleID          Code = "DUPLICATE_MODULE_ID"
	CodeInvalidModuleID            Code = "INVALID_MODULE_ID"
	CodeIDTooLong                  Code = "ID_TOO_LONG"
	CodeInvalidSegment             Code = "INVALID_SEGMENT"
	CodeReloadFailed               Code = "RELOAD_FAILED"
	CodeStreamingInterfaceMismatch Code = "STREAMING_INTERFACE_MISMATCH"
	CodeContextBindingError        Code = "CONTEXT_BINDING_ERROR"
	CodeInvalidParentID            Code = "INVALID_PARENT_ID"
	CodeCircuitBreakerOpen         Code = "CIRCUIT_BREAKER_OPEN"
	CodeExecutionCancelled         Code = "EXECUTION_CANCELLED"
	CodeSchemaNotFound             Code = "SCHEMA_NOT_FOUND"
	CodeSchemaValidation           Code = "SCHEMA_VALIDATION_ERROR"
	CodeSchemaParse                Code = "SCHEMA_PARSE_ERROR"
	CodeSchemaCircularRef          Code = "SCHEMA_CIRCULAR_REF"
	CodeSchemaMaxDepthExceeded     Code = "SCHEMA_MAX_DEPTH_EXCEEDED"
	CodeSchemaUnionNoMatch         Code = "SCHEMA_UNION_NO_MATCH"
	CodeSchemaUnionAmbiguous       Code = "SCHEMA_UNION_AMBIGUOUS"
	CodeACLDenied                  Code = "ACL_DENIED"
	CodeACLRuleError               Code = "ACL_RULE_ERROR"
	CodeApprovalDenied             Code = "APPROVAL_DENIED"
	CodeApprovalTimeout            Code = "APPROVAL_TIMEOUT"
	CodeApprovalPending            Code = "APPROVAL_PENDING"
	CodeCallDepthExceeded          Code = "CALL_DEPTH_EXCEEDED"
	CodeCircularCall               Code = "CIRCULAR_CALL"
	CodeCallFrequencyExceeded      Code = "CALL_FREQUENCY_EXCEEDED"
	CodeFuncMissingTypeHint        Code = "FUNC_MISSING_TYPE_HINT"
	CodeFuncMissingReturnType      Code = "FUNC_MISSING_RETURN_TYPE"
	CodeBindingInvalidTarget       Code = "BINDING_INVALID_TARGET"
	CodeBindingModuleNotFound      Code = "BINDING_MODULE_NOT_FOUND"
	CodeBindingCallableNotFound    Code = "BINDING_CALLABLE_NOT_FOUND"
	CodeBindingNotCallable         Code = "BINDING_NOT_CALLABLE"
	CodeBindingFileInvalid         Code = "BINDING_FILE_INVALID"
	CodeBindingSchemaInference     Code = "BINDING_SCHEMA_INFERENCE_FAILED"
	CodeBindingSchemaModeConflict  Code = "BINDING_SCHEMA_MODE_CONFLICT"
	CodeBindingStrictIncompatible  Code = "BINDING_STRICT_SCHEMA_INCOMPATIBLE"
	CodeMiddlewareChain            Code = "MIDDLEWARE_CHAIN_ERROR"
	CodePipelineConfiguration      Code = "PIPELINE_CONFIGURATION_ERROR"
	CodePipelineAbort              Code = "PIPELINE_ABORT"
	CodePipelineStep               Code = "PIPELINE_STEP_ERROR"
	CodePipelineDependency         Code = "PIPELINE_DEPENDENCY_ERROR"
	CodePipelineStepNotFound       Code = "PIPELINE_STEP_NOT_FOUND"
	CodePipelineHandler            Code = "PIPELINE_HANDLER_NOT_SUPPORTED"
	CodeStepNotFound               Code = "STEP_NOT_FOUND"
	CodeStepNameDuplicate          Code = "STEP_NAME_DUPLICATE"
	CodeStepNotRemovable           Code = "STEP_NOT_REMOVABLE"
	CodeStepNotReplaceable         Code = "STEP_NOT_REPLACEABLE"
	CodeStrategyNotFound           Code = "STRATEGY_NOT_FOUND"
	CodeSysModulesDisabled         Code = "SYS_MODULES_DISABLED"
	CodeSysModuleRegistration      Code = "SYS_MODULE_REGISTRATION_FAILED"
	CodeTaskLimitExceeded          Code = "TASK_LIMIT_EXCEEDED"
	CodeTaskStoreUnavailable       Code = "TASK_STORE_UNAVAILABLE"
	CodeReaperAlreadyRunning       Code = "REAPER_ALREADY_RUNNING"
	CodeCircularDependency         Code = "CIRCULAR_DEPENDENCY"
	CodeDependencyNotFound         Code = "DEPENDENCY_NOT_FOUND"
	CodeDependencyVersionMismatch  Code = "DEPENDENCY_VERSION_MISMATCH"
	CodeVersionIncompatible        Code = "VERSION_INCOMPATIBLE"
	CodeVersionConstraintInvalid   Code = "VERSION_CONSTRAINT_INVALID"
	CodeErrorCodeCollision         Code = "ERROR_CODE_COLLISION"
	CodeErrorFormatterDuplicate    Code = "ERROR_FORMATTER_DUPLICATE"
	CodeInvalidInput               Code = "GENERAL_INVALID_INPUT"
	CodeInternal                   Code = "GENERAL_INTERNAL_ERROR"
	CodeNotImplemented             Code = "GENERAL_NOT_IMPLEMENTED"
)

// Codes of the bus (wire protocol, section 10).
const (
	CodeBusNoResponders       Code = "BUS_NO_RESPONDERS"
	CodeBusNodeLost           Code = "BUS_NODE_LOST"
	CodeBusOverloaded         Code = "BUS_OVERLOADED"
	CodeBusDisconnected       Code = "BUS_DISCONNECTED"
	CodeBusPayloadTooLarge    Code = "BUS_PAYLOAD_TOO_LARGE"
	CodeBusBadMessage         Code = "BUS_BAD_MESSAGE"
	CodeBusVersionUnsupported Code = "BUS_VERSION_UNSUPPORTED"
	CodeBusVersionMismatch    Code = "BUS_VERSION_MISMATCH"
	CodeBusUnsupportedType    Code = "BUS_UNSUPPORTED_TYPE"
	CodeBusUnauthenticated    Code = "BUS_UNAUTHENTICATED"
	CodeBusReplayed           Code = "BUS_REPLAYED"
	CodeBusStreamTruncated    Code = "BUS_STREAM_TRUNCATED"
	CodeBusBudgetExhausted    Code = "BUS_BUDGET_EXHAUSTED"
)

// Codes of durable tasks (durable design, section 1).
const (
	CodeTaskNotFound            Code = "TASK_NOT_FOUND"
	CodeTaskExpired             Code = "TASK_EXPIRED"
	CodeTaskKeyConflict         Code = "TASK_KEY_CONFLICT"
	CodeTaskLeaseLost           Code = "TASK_LEASE_LOST"
	CodeTaskOutcomeUnknown      Code = "TASK_OUTCOME_UNKNOWN"
	CodeTaskDeliveriesExhausted Code = "TASK_DELIVERIES_EXHAUSTED"
	CodeTaskResultInvalid       Code = "TASK_RESULT_INVALID"
	CodeTaskQueueTimeout        Code = "TASK_QUEUE_TIMEOUT"
	CodeTaskTotalTimeout        Code = "TASK_TOTAL_TIMEOUT"
	CodeTaskStateConflict       Code = "TASK_STATE_CONFLICT"
	CodeTaskBatchRefused        Code = "TASK_BATCH_REFUSED"
	CodeTaskUnreadable          Code = "TASK_UNREADABLE"
	CodeTaskScheduleNotFound    Code = "TASK_SCHEDULE_NOT_FOUND"
	CodeTaskScheduleExists      Code = "TASK_SCHEDULE_EXISTS"
)

// Codes of the LLM loop: what can go wrong with a recommendation.
const (
	CodeLoopNotFound     Code = "LOOP_NOT_FOUND"          // no such recommendation
	CodeLoopConflict     Code = "LOOP_CONFLICT"           // somebody else was faster
	CodeLoopIllegal      Code = "LOOP_ILLEGAL_TRANSITION" // not from this state
	CodeLoopSelfApproval Code = "LOOP_SELF_APPROVAL"
	CodeLoopScope        Code = "LOOP_SCOPE" // the actor lacks the right
	CodeLoopGated        Code = "LOOP_GATED" // destructive, or evidence of an evaluation is missing
	CodeLoopStale        Code = "LOOP_STALE" // what it would change has changed since
	CodeLoopInvalid      Code = "LOOP_INVALID"
	CodeLoopBackend      Code = "LOOP_BACKEND" // the model failed
	CodeLoopStore        Code = "LOOP_STORE"   // the store failed
)

// Tri is a three-way answer: not said, no, yes.
type Tri int8

// The values of a [Tri].
const (
	Unset Tri = iota
	False
	True
)

// TriOf gives True or False.
func TriOf(b bool) Tri {
	if b {
		return True
	}
	return False
}

// Bool returns the answer and whether there is one.
func (t Tri) Bool() (value, ok bool) { return t == True, t != Unset }

// CodeInfo is what is known about a code without an error at hand. Status is
// the HTTP-like number of the public registry, descriptive in the protocol and
// carried by the bus as Nats-Service-Error-Code.
type CodeInfo struct {
	Status      int
	Retryable   Tri
	UserFixable Tri
}

// Info returns what the registry says about c; a code it does not know, such
// as one that a module declares for itself, is status 500 and says nothing
// about retrying.
func (c Code) Info() CodeInfo {
	if info, ok := codeTable[c]; ok {
		return info
	}
	return CodeInfo{Status: 500}
}

// Known reports whether c belongs to the framework.
func (c Code) Known() bool { _, ok := codeTable[c]; return ok }

// Codes lists every framework code, sorted.
func Codes() iter.Seq[Code] {
	return slices.Values(slices.Sorted(maps.Keys(codeTable)))
}

// codeTable is never written after construction.
var codeTable = map[Code]CodeInfo{
	CodeConfigNotFound:             {500, False, Unset},
	CodeConfigInvalid:              {500, False, Unset},
	CodeConfigBindError:            {500, False, Unset},
	CodeConfigMountError:           {500, False, Unset},
	CodeConfigNamespaceDuplicate:   {500, False, Unset},
	CodeConfigNamespaceReserved:    {500, False, Unset},
	CodeConfigEnvPrefixConflict:    {500, False, Unset},
	CodeConfigEnvMapConflict:       {500, False, Unset},
	CodeConfigKeyRestricted:        {403, False, Unset},
	CodeModuleNotFound:             {404, False, True},
	CodeModuleLoadError:            {500, False, Unset},
	CodeModuleExecuteError:         {500, Unset, Unset},
	CodeModuleTimeout:              {504, True, False},
	CodeModuleDisabled:             {403, False, False},
	CodeModuleIDConflict:           {500, False, Unset},
	CodeModuleReloadConflict:       {400, False, Unset},
	CodeDuplicateModuleID:          {409, False, Unset},
	CodeInvalidModuleID:            {400, False, Unset},
	CodeIDTooLong:                  {500, False, Unset},
	CodeInvalidSegment:             {500, False, Unset},
	CodeReloadFailed:               {500, True, Unset},
	CodeStreamingInterfaceMismatch: {500, False, Unset},
	CodeContextBindingError:        {500, False, Unset},
	CodeInvalidParentID:            {400, False, True},
	CodeCircuitBreakerOpen:         {503, True, Unset},
	CodeExecutionCancelled:         {499, True, Unset},
	CodeSchemaNotFound:             {404, False, Unset},
	CodeSchemaValidation:           {400, False, True},
	CodeSchemaParse:                {500, False, Unset},
	CodeSchemaCircularRef:          {500, False, Unset},
	CodeSchemaMaxDepthExceeded:     {500, False, Unset},
	CodeSchemaUnionNoMatch:         {400, False, Unset},
	CodeSchemaUnionAmbiguous:       {400, False, Unset},
	CodeACLDenied:                  {403, False, False},
	CodeACLRuleError:               {500, False, Unset},
	CodeApprovalDenied:             {403, False, False},
	CodeApprovalTimeout:            {408, True, False},
	CodeApprovalPending:            {202, False, Unset},
	CodeCallDepthExceeded:          {508, False, False},
	CodeCircularCall:               {508, False, False},
	CodeCallFrequencyExceeded:      {508, False, False},
	CodeFuncMissingTypeHint:        {500, False, Unset},
	CodeFuncMissingReturnType:      {500, False, Unset},
	CodeBindingInvalidTarget:       {500, False, Unset},
	CodeBindingModuleNotFound:      {500, False, Unset},
	CodeBindingCallableNotFound:    {500, False, Unset},
	CodeBindingNotCallable:         {500, False, Unset},
	CodeBindingFileInvalid:         {500, False, Unset},
	CodeBindingSchemaInference:     {500, False, True},
	CodeBindingSchemaModeConflict:  {500, False, True},
	CodeBindingStrictIncompatible:  {500, False, True},
	CodeMiddlewareChain:            {500, False, Unset},
	CodePipelineConfiguration:      {500, False, Unset},
	CodePipelineAbort:              {500, False, Unset},
	CodePipelineStep:               {500, False, Unset},
	CodePipelineDependency:         {500, False, Unset},
	CodePipelineStepNotFound:       {500, False, Unset},
	CodePipelineHandler:            {500, False, Unset},
	CodeStepNotFound:               {500, False, Unset},
	CodeStepNameDuplicate:          {500, False, Unset},
	CodeStepNotRemovable:           {500, False, Unset},
	CodeStepNotReplaceable:         {500, False, Unset},
	CodeStrategyNotFound:           {500, False, Unset},
	CodeSysModulesDisabled:         {500, False, Unset},
	CodeSysModuleRegistration:      {500, False, Unset},
	CodeTaskLimitExceeded:          {429, True, Unset},
	CodeTaskStoreUnavailable:       {503, True, Unset},
	CodeReaperAlreadyRunning:       {500, False, Unset},
	CodeCircularDependency:         {500, False, Unset},
	CodeDependencyNotFound:         {500, False, True},
	CodeDependencyVersionMismatch:  {500, False, True},
	CodeVersionIncompatible:        {500, False, Unset},
	CodeVersionConstraintInvalid:   {500, False, True},
	CodeErrorCodeCollision:         {500, False, Unset},
	CodeErrorFormatterDuplicate:    {500, False, Unset},
	CodeInvalidInput:               {400, False, True},
	CodeInternal:                   {500, True, False},
	CodeNotImplemented:             {501, False, Unset},

	CodeTaskNotFound:            {404, False, True},
	CodeTaskExpired:             {410, False, False},
	CodeTaskKeyConflict:         {409, False, True},
	CodeTaskLeaseLost:           {409, False, False},
	CodeTaskOutcomeUnknown:      {502, False, Unset},
	CodeTaskDeliveriesExhausted: {502, False, Unset},
	CodeTaskResultInvalid:       {502, False, False},
	CodeTaskQueueTimeout:        {504, True, False},
	CodeTaskTotalTimeout:        {504, False, False},
	CodeTaskStateConflict:       {409, False, Unset},
	CodeTaskBatchRefused:        {409, False, True},
	CodeTaskUnreadable:          {501, False, False},
	CodeTaskScheduleNotFound:    {404, False, True},
	CodeTaskScheduleExists:      {409, False, True},

	CodeBusNoResponders:       {503, True, Unset},
	CodeBusNodeLost:           {503, Unset, Unset},
	CodeBusOverloaded:         {429, True, Unset},
	CodeBusDisconnected:       {503, True, Unset},
	CodeBusPayloadTooLarge:    {413, False, True},
	CodeBusBadMessage:         {400, False, True},
	CodeBusVersionUnsupported: {400, False, Unset},
	CodeBusVersionMismatch:    {409, True, Unset},
	CodeBusUnsupportedType:    {415, False, True},
	CodeBusUnauthenticated:    {401, False, Unset},
	CodeBusReplayed:           {409, False, Unset},
	CodeBusStreamTruncated:    {502, Unset, Unset},
	CodeBusBudgetExhausted:    {504, False, Unset},

	CodeLoopNotFound:     {404, False, True},
	CodeLoopConflict:     {409, True, Unset},
	CodeLoopIllegal:      {409, False, Unset},
	CodeLoopSelfApproval: {403, False, False},
	CodeLoopScope:        {403, False, False},
	CodeLoopGated:        {403, False, True},
	CodeLoopStale:        {409, False, Unset},
	CodeLoopInvalid:      {400, False, True},
	CodeLoopBackend:      {502, True, Unset},
	CodeLoopStore:        {503, True, Unset},
}
