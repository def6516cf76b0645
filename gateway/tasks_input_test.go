package gateway_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/apbus/apbus/gateway"
	"github.com/apbus/apbus/module"
)

// Every way in which what is asked of tasks, schedules and queues is refused before
// anything is stored, with its status.
func TestBadTaskInput(t *testing.T) {
	url := serve(t, withTasks(t))
	long := strings.Repeat("k", 257)
	deep := strings.Repeat(`{"a":`, 100) + "1" + strings.Repeat("}", 100)
	one := func(members string) string { return `{"module_id":"idle.x",` + members + `}` }
	every := func(cron, members string) string {
		return `{"name":"s","cron":` + cron + members + `,"task":{"module_id":"idle.x"}}`
	}
	const tasks, schedules, invalid = "/v1/tasks", "/v1/schedules", module.CodeInvalidInput
	for _, tt := range []struct {
		name, path, body string
		status           int
		code             module.Code
	}{
		// Times.
		{"queue wait negative", tasks, one(`"timeouts":{"queue_wait_ms":-1}`), 400, invalid},
		{"queue wait of nothing", tasks, one(`"timeouts":{"queue_wait_ms":0}`), 400, invalid},
		{"queue wait absurd", tasks, one(`"timeouts":{"queue_wait_ms":9223372036854775807}`), 400, invalid},
		{"queue wait beyond 64 bits", tasks, one(`"timeouts":{"queue_wait_ms":99999999999999999999}`), 400, module.CodeBusBadMessage},
		{"queue wait of half a millisecond", tasks, one(`"timeouts":{"queue_wait_ms":0.5}`), 400, invalid},
		{"queue wait in words", tasks, one(`"timeouts":{"queue_wait_ms":"5s"}`), 400, invalid},
		{"attempt negative", tasks, one(`"timeouts":{"attempt_ms":-1}`), 400, invalid},
		{"attempt absurd", tasks, one(`"timeouts":{"attempt_ms":9223372036854775807}`), 400, invalid},
		{"total negative", tasks, one(`"timeouts":{"total_ms":-9223372036854775808}`), 400, invalid},
		{"total absurd", tasks, one(`"timeouts":{"total_ms":4611686018427387904}`), 400, invalid},
		{"timeout that is none", tasks, one(`"timeouts":{"lunch_ms":1}`), 400, invalid},
		{"timeouts are a number", tasks, one(`"timeouts":5`), 400, invalid},
		{"run_at a number", tasks, one(`"run_at":1700000000`), 400, invalid},
		{"run_at in words", tasks, one(`"run_at":"tomorrow"`), 400, invalid},
		{"run_at without a zone", tasks, one(`"run_at":"2030-01-01T00:00:00"`), 400, invalid},
		{"run_at on no day", tasks, one(`"run_at":"2030-02-30T00:00:00Z"`), 400, invalid},
		{"run_at in another age", tasks, one(`"run_at":"9999-12-31T23:59:59Z"`), 400, invalid},
		{"run_at before everything", tasks, one(`"run_at":"0001-01-01T00:00:00Z"`), 400, invalid},
		{"retries negative", tasks, one(`"retry":{"max_retries":-1}`), 400, invalid},
		{"retries absurd", tasks, one(`"retry":{"max_retries":9223372036854775807}`), 400, invalid},
		{"delay negative", tasks, one(`"retry":{"retry_delay_ms":-1}`), 400, invalid},
		{"delay absurd", tasks, one(`"retry":{"retry_delay_ms":9223372036854775807}`), 400, invalid},
		{"longest delay negative", tasks, one(`"retry":{"max_retry_delay_ms":-1}`), 400, invalid},
		{"backoff of zero", tasks, one(`"retry":{"backoff_multiplier":0}`), 400, invalid},
		{"backoff that shrinks below zero", tasks, one(`"retry":{"backoff_multiplier":-2}`), 400, invalid},
		{"backoff beyond numbers", tasks, one(`"retry":{"backoff_multiplier":1e999}`), 400, module.CodeBusBadMessage},
		{"retry that is none", tasks, one(`"retry":{"forever":true}`), 400, invalid},

		// What is submitted.
		{"no module", tasks, `{}`, 400, module.CodeInvalidModuleID},
		{"no object", tasks, `[]`, 400, module.CodeBusBadMessage},
		{"no body", tasks, ``, 400, module.CodeInvalidModuleID},
		{"half a body", tasks, `{"module_id":"idle.x"`, 400, module.CodeBusBadMessage},
		{"two bodies", tasks, one(`"priority":1`) + one(`"priority":1`), 400, module.CodeBusBadMessage},
		{"a key twice", tasks, one(`"priority":1,"priority":2`), 400, module.CodeBusBadMessage},
		{"not UTF-8", tasks, one("\"idempotency_key\":\"\xff\""), 400, module.CodeBusBadMessage},
		{"module ID that is none", tasks, `{"module_id":"../etc/passwd"}`, 400, module.CodeInvalidModuleID},
		{"module ID too long", tasks, `{"module_id":"a.` + strings.Repeat("b", 300) + `"}`, 400, module.CodeInvalidModuleID},
		{"unknown field", tasks, one(`"prioritty":1`), 400, invalid},
		{"unknown field of many", tasks, `{"tasks":[{"module_id":"idle.x","retry":{"Max_retries":1}}]}`, 400, invalid},
		{"unknown field with a long name", tasks, one(`"` + strings.Repeat("f", 10_000) + `":1`), 400, invalid},
		{"field of another case", tasks, one(`"Priority":1`), 400, invalid},
		{"somebody else's context", tasks, one(`"context":{"identity":{"id":"root"}}`), 400, invalid},
		{"priority too low", tasks, one(`"priority":-1`), 400, invalid},
		{"priority too high", tasks, one(`"priority":10`), 400, invalid},
		{"priority of a half", tasks, one(`"priority":2.5`), 400, invalid},
		{"on_crash that is none", tasks, one(`"on_crash":"explode"`), 400, invalid},
		{"key too long", tasks, one(`"idempotency_key":"` + long + `"`), 400, invalid},
		{"key of blanks", tasks, one(`"idempotency_key":"  "`), 400, invalid},
		{"concurrency key too long", tasks, one(`"concurrency_key":"` + long + `"`), 400, invalid},
		{"parent that is no task", tasks, one(`"parent_task_id":"mine"`), 400, invalid},
		{"inputs are a list", tasks, one(`"inputs":[1]`), 400, invalid},
		{"inputs are text", tasks, one(`"inputs":"{}"`), 400, invalid},
		{"inputs NaN", tasks, one(`"inputs":{"n":NaN}`), 400, module.CodeBusBadMessage},
		{"inputs 100 deep", tasks, one(`"inputs":` + deep), 400, module.CodeBusBadMessage},
		{"inputs too large", tasks, one(`"inputs":{"s":"` + strings.Repeat("x", 600<<10) + `"}`), 413, module.CodeBusPayloadTooLarge},
		{"inputs that fail the schema", tasks, `{"module_id":"work.strict","inputs":{"n":"SECRET"}}`, 400, module.CodeSchemaValidation},
		{"inputs that the schema does not know", tasks, `{"module_id":"work.strict","inputs":{"n":1,"m":2}}`, 400, module.CodeSchemaValidation},
		{"no inputs where the schema wants some", tasks, `{"module_id":"work.strict"}`, 400, module.CodeSchemaValidation},
		{"none of many", tasks, `{"tasks":[]}`, 400, invalid},
		{"too many", tasks, `{"tasks":[` + strings.Repeat(`{"module_id":"idle.x"},`, 1000) + `{"module_id":"idle.x"}]}`, 400, invalid},
		{"many that are none", tasks, `{"tasks":{}}`, 400, invalid},
		{"one and many", tasks, one(`"tasks":[]`), 400, invalid},

		// Schedules.
		{"no schedule", schedules, `{}`, 400, invalid},
		{"schedule without a name", schedules, `{"cron":"@daily","task":{"module_id":"idle.x"}}`, 400, invalid},
		{"schedule with a bad name", schedules, `{"name":"a/b","cron":"@daily","task":{"module_id":"idle.x"}}`, 400, invalid},
		{"schedule with a long name", schedules, `{"name":"` + long + `","cron":"@daily","task":{"module_id":"idle.x"}}`, 400, invalid},
		{"schedule without a time", schedules, `{"name":"s","task":{"module_id":"idle.x"}}`, 400, invalid},
		{"schedule without a module", schedules, `{"name":"s","cron":"@daily","task":{}}`, 400, module.CodeInvalidModuleID},
		{"schedule of nothing", schedules, `{"name":"s","cron":"@daily"}`, 400, module.CodeInvalidModuleID},
		{"cron of one field", schedules, every(`"5"`, ``), 400, invalid},
		{"cron of six fields", schedules, every(`"0 0 0 * * *"`, ``), 400, invalid},
		{"cron in words", schedules, every(`"every day at noon"`, ``), 400, invalid},
		{"cron minute 60", schedules, every(`"60 * * * *"`, ``), 400, invalid},
		{"cron hour 24", schedules, every(`"0 24 * * *"`, ``), 400, invalid},
		{"cron day 0", schedules, every(`"0 0 0 * *"`, ``), 400, invalid},
		{"cron month 13", schedules, every(`"0 0 1 13 *"`, ``), 400, invalid},
		{"cron weekday 9", schedules, every(`"0 0 * * 9"`, ``), 400, invalid},
		{"cron step of zero", schedules, every(`"*/0 * * * *"`, ``), 400, invalid},
		{"cron step negative", schedules, every(`"*/-5 * * * *"`, ``), 400, invalid},
		{"cron range backwards", schedules, every(`"30-10 * * * *"`, ``), 400, invalid},
		{"cron of empty lists", schedules, every(`", * * * *"`, ``), 400, invalid},
		{"cron that never comes", schedules, every(`"0 0 30 2 *"`, ``), 400, invalid},
		{"cron a number", schedules, every(`5`, ``), 400, invalid},
		{"cron very long", schedules, every(`"`+strings.Repeat("1,", 100_000)+`1 * * * *"`, ``), 400, invalid},
		{"interval of nothing", schedules, every(`"@every 0s"`, ``), 400, invalid},
		{"interval negative", schedules, every(`"@every -1h"`, ``), 400, invalid},
		{"interval of a blink", schedules, every(`"@every 1ms"`, ``), 400, invalid},
		{"interval of an age", schedules, every(`"@every 100000h"`, ``), 400, invalid},
		{"interval of soon", schedules, every(`"@every soon"`, ``), 400, invalid},
		{"word that is none", schedules, every(`"@fortnightly"`, ``), 400, invalid},
		{"zone that is none", schedules, every(`"@daily"`, `,"time_zone":"Mars/Base"`), 400, invalid},
		{"zone of the machine", schedules, every(`"@daily"`, `,"time_zone":"Local"`), 400, invalid},
		{"zone that is a path", schedules, every(`"@daily"`, `,"time_zone":"../../etc/passwd"`), 400, invalid},
		{"missed that is none", schedules, every(`"@daily"`, `,"missed":"twice"`), 400, invalid},
		{"schedule with an unknown field", schedules, every(`"@daily"`, `,"crom":"x"`), 400, invalid},
		{"schedule of a task with a time", schedules, `{"name":"s","cron":"@daily","task":{"module_id":"idle.x","run_at":"2030-01-01T00:00:00Z"}}`, 400, invalid},
		{"schedule of a task with a key", schedules, `{"name":"s","cron":"@daily","task":{"module_id":"idle.x","idempotency_key":"k"}}`, 400, invalid},
		{"schedule of a task with a negative time", schedules, `{"name":"s","cron":"@daily","task":{"module_id":"idle.x","timeouts":{"total_ms":-1}}}`, 400, invalid},
		{"schedule of inputs that fail the schema", schedules, `{"name":"s","cron":"@daily","task":{"module_id":"work.strict","inputs":{"n":"SECRET"}}}`, 400, module.CodeSchemaValidation},

		// Queues and many tasks at once.
		{"queue of no module", "/v1/queues/Bad/pause", ``, 400, module.CodeInvalidModuleID},
		{"queue with an unknown field", "/v1/queues/idle.x/pause", `{"because":"x"}`, 400, invalid},
		{"queue without limits", "/v1/queues/idle.x/limits", `{}`, 400, invalid},
		{"queue with a negative limit", "/v1/queues/idle.x/limits", `{"concurrency":-1}`, 400, invalid},
		{"queue with an absurd limit", "/v1/queues/idle.x/limits", `{"key_concurrency":1000000000000}`, 400, invalid},
		{"queue with half a limit", "/v1/queues/idle.x/limits", `{"concurrency":1.5}`, 400, invalid},
		{"queue with an unknown limit", "/v1/queues/idle.x/limits", `{"paused":true}`, 400, invalid},
		{"limits of no module", "/v1/queues/Bad/limits", `{"concurrency":1}`, 400, module.CodeInvalidModuleID},
		{"queue that is told something else", "/v1/queues/idle.x/stop", ``, 404, gateway.CodeNotFound},
		{"bulk of nothing", "/v1/tasks:bulk", `{}`, 400, invalid},
		{"bulk of everything", "/v1/tasks:bulk", `{"action":"cancel","filter":{}}`, 400, invalid},
		{"bulk that does something else", "/v1/tasks:bulk", `{"action":"delete","filter":{"module":"idle.x"}}`, 400, invalid},
		{"bulk with a negative limit", "/v1/tasks:bulk", `{"action":"cancel","filter":{"module":"idle.x"},"limit":-1}`, 400, invalid},
		{"bulk with an unknown filter", "/v1/tasks:bulk", `{"action":"cancel","filter":{"colour":"red"}}`, 400, invalid},
	} {
		t.Run(tt.name, func(t *testing.T) {
			res := request(t, "POST", url+tt.path, tt.body)
			res.wantFault(t, tt.status, tt.code)
			if strings.Contains(res.body, "SECRET") {
				t.Errorf("a value is quoted: %s", res.body)
			}
		})
	}
	for _, path := range []string{"/v1/tasks", "/v1/schedules", "/v1/queues"} {
		for _, list := range request(t, "GET", url+path, "").fields(t) {
			if kept, ok := list.([]any); ok && len(kept) != 0 {
				t.Errorf("%s: something was kept: %v", path, kept)
			}
		}
	}
	if res := request(t, "GET", url+"/v1/tasks/"+submit(t, url, `{"module_id":"work.ok"}`)+"/result?wait=10s", ""); res.status != 200 {
		t.Errorf("afterwards: %d %s", res.status, res.body)
	}
}

// Whatever a module does, its task ends with a code and a status, and the worker
// lives on.
func TestBadModules(t *testing.T) {
	url := serve(t, withTasks(t))
	for _, tt := range []struct {
		module string
		status int
		code   module.Code
	}{
		{"bad.nan", 502, module.CodeTaskResultInvalid},
		{"bad.infinite", 502, module.CodeTaskResultInvalid},
		{"bad.cyclic", 502, module.CodeTaskResultInvalid},
		{"bad.func", 502, module.CodeTaskResultInvalid},
		{"bad.large", 502, module.CodeTaskResultInvalid},
		{"bad.text", 502, module.CodeTaskResultInvalid},
		{"bad.panic_number", 500, module.CodeModuleExecuteError},
		{"bad.panic_thing", 500, module.CodeModuleExecuteError},
		{"bad.panic_error", 500, module.CodeModuleExecuteError},
		{"bad.panic_nil", 500, module.CodeModuleExecuteError},
		{"bad.exit", 500, module.CodeModuleExecuteError},
	} {
		t.Run(tt.module, func(t *testing.T) {
			id := submit(t, url, fmt.Sprintf(`{"module_id":%q,"retry":{"max_retries":2,"retry_delay_ms":1}}`, tt.module))
			res := request(t, "GET", url+"/v1/tasks/"+id+"/result?wait=10s", "")
			res.wantFault(t, tt.status, tt.code)
			if strings.Contains(res.body, "SECRET") {
				t.Errorf("it tells a secret: %s", res.body)
			}
		})
	}
}
