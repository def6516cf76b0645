package gateway

import (
	"net/http"
	"slices"
)

// routes is everything that is served.
func (g *Gateway) routes() []*route {
	reason := param{"reason", "Free text for the cancelled calls' evidence."}
	trace := []param{
		{"traceparent", "W3C trace context; the call joins the trace."},
		{"tracestate", "W3C trace state, passed on."},
	}
	checkHeaders := append([]param{
		{headerTimeout, "Time for the call, a Go duration such as 5s; 0 or absent is the module's own limit."},
		{headerModuleVersion, "Version constraint such as ^2.1."},
		{headerApproval, "Token of an approval that was granted."},
		{headerNode, "ID of the only node that may have the call; an unknown one is 404."},
	}, trace...)
	streamHeaders := append([]param{
		{headerIdempotency, "Handed to the module and to evidence."},
		{headerTrace, "1 sends the pipeline trace as the event trace, before the last one."},
	}, checkHeaders...)
	callHeaders := append([]param{
		{headerIdempotency, "Handed to the module and to evidence."},
		{headerTrace, "1 makes the answer {output, trace}, and that of a failure {error, trace}."},
		{"Prefer", "respond-async answers 202 at once and keeps the outcome for 5 minutes at GET /v1/calls/{call}."},
	}, checkHeaders...)
	return append([]*route{
		{
			method: http.MethodGet, pattern: "/v1/modules", operation: "listModules",
			summary: "Modules that live nodes host", scope: ScopeCall, class: control,
			query: []param{
				{"prefix", "IDs that start with this."}, {"tag", "Modules with this tag; repeated: with all of them."},
				{"q", "Text in ID, name, description or tags."},
			},
			answers: []outcome{{200, "ModuleList", "The modules, sorted by ID."}}, handle: g.listModules,
		},
		{
			method: http.MethodGet, pattern: "/v1/modules/{id}", operation: "showModule",
			summary: "One module: descriptor, schemas, live hosts, guidance", scope: ScopeCall, class: control,
			answers: []outcome{{200, "Module", "The module."}, {404, "ErrorBody", "No live node hosts it."}}, handle: g.showModule,
		},
		{
			method: http.MethodPost, pattern: "/v1/modules/{id}/call", operation: "callModule",
			summary: "Run a module: inputs in, output out", scope: ScopeCall, class: work,
			headers: callHeaders, body: "Inputs",
			answers: []outcome{
				{200, "CallAnswer", "The bare output, or {output, trace} with Apbus-Trace: 1. The header Apbus-Call holds the call ID."},
				{202, "Accepted", "With Prefer: respond-async; or, as an error, that the call waits for an approval."},
			},
			handle: g.call,
		},
		{
			method: http.MethodPost, pattern: "/v1/modules/{id}/stream", operation: "streamModule",
			summary: "Run a module: inputs in, events out", scope: ScopeCall, class: work,
			headers: streamHeaders, body: "Inputs",
			answers: []outcome{
				{200, eventsSchema, "Server-Sent Events: accept, progress, data (id is the chunk's number), trace, end (id is the number of chunks, data the whole output) and error; comments keep the connection alive. What fails before the first event is a plain error."},
				{202, "ErrorBody", "The call waits for an approval."},
			},
			handle: g.stream,
		},
		{
			method: http.MethodPost, pattern: "/v1/modules/{id}/check", operation: "checkModule",
			summary: "Validate a call without running it, and predict its changes", scope: ScopeCall, class: work,
			headers: checkHeaders, body: "Inputs",
			answers: []outcome{{200, "PreflightResult", "Valid or not; bad inputs, an unknown module and a denied caller are valid: false."}},
			handle:  g.check,
		},
		{
			method: http.MethodGet, pattern: "/v1/calls", operation: "listCalls",
			summary: "Calls in flight in the namespace, nested ones too", scope: ScopeCall, class: control,
			answers: []outcome{{200, "CallList", "The calls, oldest first."}}, handle: g.listCalls,
		},
		{
			method: http.MethodDelete, pattern: "/v1/calls", operation: "cancelCalls",
			summary: "Cancel every call of a root or of a trace", scope: ScopeCancel, class: control,
			query:   []param{{"root", "Call ID of the tree's root."}, {"trace", "Trace ID."}, reason},
			answers: []outcome{{202, "CancelResult", "Who answered."}, {404, "ErrorBody", "Nobody knew such a call."}},
			handle:  g.cancelMany,
		},
		{
			method: http.MethodGet, pattern: "/v1/calls/{call}", operation: "showCall",
			summary: "One call in flight, or the outcome of a detached call", scope: ScopeCall, class: control,
			answers: []outcome{{200, "Call", "State, and output or error of a detached call that ended."}, {404, "ErrorBody", "Nobody knows it."}},
			handle:  g.showCall,
		},
		{
			method: http.MethodDelete, pattern: "/v1/calls/{call}", operation: "cancelCall",
			summary: "Cancel a call wherever it runs", scope: ScopeCancel, class: control,
			query:   []param{reason},
			answers: []outcome{{202, "CancelResult", "Who answered."}, {404, "ErrorBody", "Nobody knew it."}},
			handle:  g.cancelCall,
		},
		{
			method: http.MethodGet, pattern: "/v1/nodes", operation: "listNodes",
			summary: "Processes of the namespace", scope: ScopeCall, class: control,
			answers: []outcome{{200, "NodeList", "The nodes, sorted by ID."}}, handle: g.listNodes,
		},
		{
			method: http.MethodPost, pattern: "/v1/nodes/{id}/drain", operation: "drainNode",
			summary: "Have a node finish what it has and take nothing new", scope: ScopeOperate, class: control,
			body:    "DrainRequest",
			answers: []outcome{{202, "DrainResult", "Draining; progress shows in GET /v1/nodes."}, {404, "ErrorBody", "No such node."}},
			handle:  g.drainNode,
		},
		{
			method: http.MethodGet, pattern: "/v1/doctor", operation: "showDoctor",
			summary: "Misconfigurations of the bus, and how each is mended", scope: ScopeOperate, class: control,
			answers: []outcome{{200, "Diagnosis", "What was looked at, with what was found. It takes a few seconds."}}, handle: g.showDoctor,
		},
		{
			method: http.MethodGet, pattern: "/v1/governance", operation: "showGovernance",
			summary: "What stands in front of the modules of each node, as it is now", scope: ScopeOperate, class: control,
			answers: []outcome{{200, "GovernanceList", "The nodes, sorted by ID; governance is null for one that did not say."}},
			handle:  g.showGovernance,
		},
		{
			method: http.MethodGet, pattern: "/v1/stats", operation: "showStats",
			summary: "What each node does and has done, module by module", scope: ScopeCall, class: control,
			answers: []outcome{{200, "StatsList", "The nodes that answered, sorted by ID. Counts only grow while boot stays the same."}},
			handle:  g.showStats,
		},
		{
			method: http.MethodGet, pattern: "/metrics", operation: "showMetrics", summary: "Metrics of the router for Prometheus", scope: ScopeCall, class: probe,
			answers: []outcome{{200, metricsSchema, "In the text format of Prometheus."}, {404, "ErrorBody", "They are not served here."}}, handle: g.showMetrics,
		},
		{
			method: http.MethodGet, pattern: "/healthz", operation: "healthz", summary: "The process lives", class: probe,
			answers: []outcome{{200, "Status", "It does."}}, handle: g.healthz,
		},
		{
			method: http.MethodGet, pattern: "/readyz", operation: "readyz", summary: "A call could pass", class: probe,
			answers: []outcome{{200, "Status", "A probe went through the bus just now."}, {503, "ErrorBody", "It did not."}}, handle: g.readyz,
		},
		{
			method: http.MethodGet, pattern: "/openapi.json", operation: "openapi", summary: "This document", class: control,
			answers: []outcome{{200, "Inputs", "OpenAPI 3.1."}}, handle: g.serveOpenAPI,
		},
	}, slices.Concat(g.approvalRoutes(), g.evidenceRoutes(), g.taskRoutes(), g.recRoutes(), g.loopRoutes())...)
}
