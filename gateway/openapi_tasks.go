package gateway

// taskSchemas are the bodies of the routes of tasks; package task says more.
func taskSchemas() map[string]any {
	var (
		text    = typed("string")
		integer = typed("integer")
		number  = typed("number")
		boolean = typed("boolean")
		object  = typed("object")
		seconds = map[string]any{"type": []any{"number", "null"}, "description": "Unix seconds."}
	)
	enum := func(values ...string) map[string]any { return map[string]any{"type": "string", "enum": texts(values)} }
	status := enum("pending", "running", "completed", "failed", "cancelled")
	retry := record(nil, map[string]any{
		"max_retries": integer, "retry_delay_ms": integer, "backoff_multiplier": number, "max_retry_delay_ms": integer,
	})
	timeouts := record(nil, map[string]any{"queue_wait_ms": integer, "attempt_ms": integer, "total_ms": integer})
	submission := record([]string{"module_id"}, map[string]any{
		"module_id": text, "inputs": object, "idempotency_key": text, "priority": integer,
		"run_at": map[string]any{"type": "string", "format": "date-time"}, "retry": retry, "timeouts": timeouts,
		"on_crash": enum("fail", "retry"), "concurrency_key": text, "detached": boolean, "parent_task_id": text,
	})
	receipt := record([]string{"task_id", "status", "detail", "deduplicated", "durability"}, map[string]any{
		"task_id": text, "status": status, "detail": text, "deduplicated": boolean, "durability": enum("power-safe", "process-safe"),
	})
	queue := record([]string{"module_id", "paused"}, map[string]any{
		"module_id": text, "paused": boolean, "paused_by": text, "reason": text, "concurrency": integer, "key_concurrency": integer,
		"queued": integer, "scheduled": integer, "backing_off": integer, "awaiting_approval": integer, "claimed": integer,
		"running": integer, "hosts": integer, "oldest_ms": integer,
	})
	schedule := map[string]any{
		"name": text, "cron": text, "time_zone": text, "missed": enum("skip", "once"), "paused": boolean, "task": submission,
	}
	kept := map[string]any{
		"v": integer, "created_at": seconds, "created_by": text, "next_at": seconds, "last_at": seconds, "last_task_id": text,
		"last_error": ref("Error"), "fired": integer, "missed_count": integer,
	}
	for key, v := range schedule {
		kept[key] = v
	}
	return map[string]any{
		"TaskSubmission": map[string]any{"anyOf": []any{
			submission, record([]string{"tasks"}, map[string]any{"tasks": listOf(submission), "all": boolean}),
		}},
		"TaskReceipts": map[string]any{"anyOf": []any{
			receipt, record([]string{"receipts"}, map[string]any{"receipts": listOf(map[string]any{"anyOf": []any{receipt, ref("ErrorBody")}})}),
		}},
		"Task": record([]string{"task_id", "module_id", "status", "submitted_at", "timeline"}, map[string]any{
			"task_id": text, "module_id": text, "status": status, "detail": text, "blocked_by": text,
			"submitted_at": seconds, "started_at": seconds, "completed_at": seconds, "ready_at": seconds, "expires_at": seconds,
			"result": map[string]any{}, "error": map[string]any{"anyOf": []any{ref("Error"), typed("null")}},
			"inputs": map[string]any{}, "retry_count": integer, "max_retries": integer, "attempt": integer, "deliveries": integer,
			"priority": integer, "idempotency_key": text, "number": integer, "lease": object, "progress": object, "cancel_requested": object,
			"timeline": listOf(record([]string{"number", "at", "status"}, map[string]any{
				"number": integer, "at": seconds, "status": status, "detail": text, "actor": text, "node": text, "attempt": integer, "cause": text,
			})),
			"timeline_dropped": integer,
		}),
		"TaskList": record([]string{"tasks", "next_cursor"}, map[string]any{
			"tasks": listOf(ref("Task")), "next_cursor": nullable("string"), "unreadable": integer,
		}),
		"TaskCancel": record([]string{"task_id", "state"}, map[string]any{
			"task_id": text, "state": enum("accepted", "already_terminal"), "status": status, "children": integer,
		}),
		"TaskBulk": record([]string{"action", "filter"}, map[string]any{
			"action": enum("cancel", "retry", "requeue"), "reason": text, "dry_run": boolean, "limit": integer,
			"filter": record(nil, map[string]any{
				"module": text, "status": status, "detail": text, "q": text, "ids": listOf(text), "parent": text,
			}),
		}),
		"TaskBulkResult": record([]string{"action", "dry_run", "matched", "changed", "skipped", "task_ids"}, map[string]any{
			"action": text, "dry_run": boolean, "matched": integer, "changed": integer, "skipped": integer, "task_ids": listOf(text),
		}),
		"Reason":       record(nil, map[string]any{"reason": text}),
		"Queue":        queue,
		"QueueLimits":  record(nil, map[string]any{"concurrency": integer, "key_concurrency": integer}),
		"QueueList":    record([]string{"queues"}, map[string]any{"queues": listOf(ref("Queue"))}),
		"ScheduleSpec": record([]string{"cron", "task"}, schedule),
		"Schedule":     record([]string{"name", "cron", "task", "next_at"}, kept),
		"ScheduleList": record([]string{"schedules"}, map[string]any{"schedules": listOf(ref("Schedule"))}),
		"Deleted":      record([]string{"name", "deleted"}, map[string]any{"name": text, "deleted": boolean}),
	}
}
