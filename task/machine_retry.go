package task

import (
	"math"
	"time"

	"github.com/apbus/apbus/module"
)

// DefaultRetry returns apcore's defaults: no retries, 1 s, doubling, at most 60 s.
func DefaultRetry() Retry {
	return Retry{MaxRetries: 0, RetryDelayMS: 1000, BackoffMultiplier: 2, MaxRetryDelayMS: 60000}
}

// DelayMS is apcore's compute_delay_ms: how long to wait after the attempt, counted
// from 0, in whole milliseconds and without jitter.
func (r Retry) DelayMS(attempt int) int64 {
	d := float64(r.RetryDelayMS) * math.Pow(r.BackoffMultiplier, float64(max(attempt, 0)))
	if !(d < float64(r.MaxRetryDelayMS)) { // infinities and NaN too
		return r.MaxRetryDelayMS
	}
	return int64(max(d, 0))
}

// backoff is how long to wait before the next attempt: what the error asks for, else
// a random part of the delay (rule 6, full jitter). It is called before the failure
// is counted.
func (ru rules) backoff(r *Record, e *module.Error) time.Duration {
	if ms, ok := retryAfter(e); ok {
		return time.Duration(ms) * time.Millisecond
	}
	d := r.Retry.DelayMS(r.RetryCount)
	return time.Duration(float64(d) * ru.jitter() * float64(time.Millisecond))
}

// maxRetryAfter bounds what an error may ask for, in milliseconds.
const maxRetryAfter = 24 * 60 * 60 * 1000

func retryAfter(e *module.Error) (ms int64, ok bool) {
	switch v := e.Details["retry_after_ms"].(type) {
	case int64:
		ms, ok = v, true
	case uint64:
		ms, ok = maxRetryAfter, true
	case float64:
		if v >= 0 && v <= maxRetryAfter {
			ms, ok = int64(v), true
		}
	case int:
		ms, ok = int64(v), true
	}
	if !ok || ms < 0 {
		return 0, false
	}
	return min(ms, maxRetryAfter), true
}

// retryable says whether trying again can help (rule 6). The error's own word
// counts, then the code's; a failure of which nobody says anything is retried.
func retryable(e *module.Error) bool {
	switch e.Code {
	case module.CodeSchemaValidation, module.CodeSchemaUnionNoMatch, module.CodeSchemaUnionAmbiguous,
		module.CodeInvalidInput, module.CodeInvalidModuleID,
		module.CodeACLDenied, module.CodeACLRuleError,
		module.CodeApprovalDenied, module.CodeApprovalTimeout, module.CodeApprovalPending,
		module.CodeBusPayloadTooLarge, module.CodeExecutionCancelled, module.CodeTaskResultInvalid:
		return false
	}
	if yes, said := e.Retryable.Bool(); said {
		return yes
	}
	return true
}
