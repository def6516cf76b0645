package archtest_test

// row is what one package may import outside the standard library.
type row struct {
	level    int
	owns     string
	internal []string          // packages of this module
	third    map[string]string // modules, each with the reason
}

// vocabulary is level 0, which every package above may use.
var vocabulary = []string{"module", "cancel", "schema"}

// down joins lists of packages.
func down(lists ...[]string) []string {
	var all []string
	for _, l := range lists {
		all = append(all, l...)
	}
	return all
}

const (
	modJSONSchema = "github.com/santhosh-tekuri/jsonschema/v6"
	modMsgpack    = "github.com/vmihailenco/msgpack/v5"
	modOTelTrace  = "go.opentelemetry.io/otel/trace"
	modOTel       = "go.opentelemetry.io/otel"
	modOTelSDK    = "go.opentelemetry.io/otel/sdk"
	modOTLPHTTP   = "go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	modOTLPProto  = "go.opentelemetry.io/proto/otlp"
	modProtobuf   = "google.golang.org/protobuf"
	modPrometheus = "github.com/prometheus/client_golang"
	modYAML       = "go.yaml.in/yaml/v3"
	modNATS       = "github.com/nats-io/nats.go"
	modNATSServer = "github.com/nats-io/nats-server/v2"
	modNKeys      = "github.com/nats-io/nkeys"
	modMCP        = "github.com/modelcontextprotocol/go-sdk"
	modKong       = "github.com/alecthomas/kong"
	modCmp        = "github.com/google/go-cmp"
	modRapid      = "pgregory.net/rapid"
	modPorcupine  = "github.com/anishathalye/porcupine"
)

// everything is what the level that wires may use.
var everything = down(vocabulary, []string{
	"contextwire",
	"executor/registry", "executor/acl", "executor/approval", "executor/middleware", "executor/events",
	"executor", "executor/system", "task", "loop", "loop/plan", "loop/backend", "examples",
	"bus", "jetstream", "gateway", "bindings",
	"internal/settings", "internal/telemetry", "internal/heap",
})

var wiring = map[string]string{
	modKong: "flags and commands",
	modNATS: "the program owns the connection and hands it to the adapters",
}

// table says who may import whom. A package without a row fails the test, a row
// without a package does not. Beside p a package p/ptest may hold help for
// testing p: it may import p and whatever p may.
var table = map[string]row{
	"cancel": {level: 0, owns: "why and how a call stops"},
	"schema": {level: 0, owns: "JSON Schema: infer, compile, validate, redact", third: map[string]string{
		modJSONSchema: "the one validator that passes the official test suite",
	}},
	"module": {level: 0, owns: "what a module is and how it fails", internal: []string{"cancel", "schema"}},

	"contextwire": {level: 1, owns: "every byte that crosses a process boundary", internal: vocabulary, third: map[string]string{
		modMsgpack: "the binary codec of the wire",
	}},
	"executor/registry": {level: 1, owns: "the modules this process owns", internal: vocabulary},
	"executor/acl": {level: 1, owns: "who may call what", internal: vocabulary, third: map[string]string{
		modYAML: "rule files",
	}},
	"executor/approval": {level: 1, owns: "which calls need a person", internal: vocabulary},
	"executor/middleware": {level: 1, owns: "behaviour that wraps a call", internal: vocabulary, third: map[string]string{
		modOTelTrace:  "spans of the tracing middleware",
		modOTel:       "attributes and codes of those spans",
		modPrometheus: "the metrics middleware, into a registry that is handed in",
	}},
	"executor/events": {level: 1, owns: "telling subscribers what happened", internal: vocabulary},

	"executor": {
		level: 2, owns: "governing one call",
		internal: down(vocabulary, []string{"contextwire", "executor/registry", "executor/acl", "executor/approval", "executor/middleware"}),
		third: map[string]string{
			modOTelTrace: "the span of a call",
			modOTel:      "attributes and codes of that span",
		},
	},
	"executor/system": {
		level: 2, owns: "the modules by which an executor tells of itself and is controlled",
		internal: down(vocabulary, []string{"contextwire", "executor", "executor/registry", "executor/middleware", "executor/approval"}),
		third:    map[string]string{modYAML: "the overrides file"},
	},
	"task":      {level: 2, owns: "background calls as a state machine", internal: down(vocabulary, []string{"contextwire"})},
	"loop":      {level: 2, owns: "learning from what happened", internal: down(vocabulary, []string{"contextwire", "loop/plan"})},
	"loop/plan": {level: 2, owns: "procedures as graphs of calls: grammar, validation, execution, replay", internal: down(vocabulary, []string{"contextwire"})},
	"examples":  {level: 2, owns: "the built-in example modules", internal: vocabulary},

	"bus": {level: 3, owns: "carrying calls over NATS", internal: down(vocabulary, []string{"contextwire"}), third: map[string]string{
		modNATS:       "the client",
		modNATSServer: "the embedded server",
		modNKeys:      "signatures of the signed mode",
		modOTelTrace:  "the spans of a hop, from a provider that is handed in",
		modOTel:       "attributes and codes of those spans",
	}},
	// Processes and HTTP are not for loop, which decides; this is its adapter to models.
	"loop/backend": {level: 3, owns: "the model behind the loop: as a command, over HTTP, recorded, replayed, bounded", internal: down(vocabulary, []string{"contextwire", "loop"})},
	"jetstream": {
		level: 3, owns: "durable stores",
		internal: down(vocabulary, []string{"contextwire", "executor/approval", "task", "loop", "loop/plan"}),
		third:    map[string]string{modNATS: "JetStream's client"},
	},
	"gateway": {
		level: 3, owns: "the front door: HTTP, SSE, MCP, console",
		internal: down(vocabulary, []string{"contextwire", "executor/approval", "task", "loop"}),
		third:    map[string]string{modMCP: "the Model Context Protocol", modYAML: "the tokens file"},
	},

	"bindings": {level: 3, owns: "modules that are a command or an HTTP endpoint, declared in YAML", internal: vocabulary, third: map[string]string{
		modYAML: "binding files",
	}},

	"internal/settings": {level: 0, owns: "flags, environment and configuration files of the programs", third: map[string]string{
		modKong: "flags",
		modYAML: "configuration files",
	}},
	"internal/telemetry": {
		level: 3, owns: "what the programs show to the tools that watch them", internal: down(vocabulary, []string{"bus", "executor/events"}),
		third: map[string]string{
			modYAML:       "the file of those who get events",
			modOTelTrace:  "the provider that libraries take",
			modOTel:       "attributes of the process, and the SDK's error handler",
			modOTelSDK:    "the SDK that makes and batches spans",
			modOTLPHTTP:   "the exporter that sends them",
			modPrometheus: "the families of the bus",
		},
	},
	"internal/heap": {level: 0, owns: "how much garbage the programs let gather"},
	"internal/natstest": {level: 0, owns: "an embedded server for tests", third: map[string]string{
		modNATS:       "connections to it",
		modNATSServer: "the server",
	}},
	"internal/archtest": {level: 0, owns: "these rules"},

	"cmd/router": {level: 4, owns: "the router program", internal: everything, third: map[string]string{
		modKong: wiring[modKong], modNATS: wiring[modNATS],
		modOTelTrace: "the span of an HTTP request",
		modOTel:      "its attributes, and the W3C headers it comes with",
	}},
	"cmd/node": {level: 4, owns: "the node program", internal: everything, third: map[string]string{
		modKong: wiring[modKong], modNATS: wiring[modNATS],
		modYAML: "the list of who gets events",
	}},
	"cmd/apbus": {level: 4, owns: "the command line", internal: everything, third: wiring},
	"conformance": {level: 4, owns: "the published cases of the protocol, run against the public API", internal: everything, third: map[string]string{
		modOTelTrace: "the spans a case expects",
		modOTel:      "their attributes",
	}},
	"integration": {level: 4, owns: "tests of the whole system", internal: down(everything, []string{"internal/natstest"}), third: map[string]string{
		modNATS:       "peers that are not ours",
		modNATSServer: "servers under test",
		modNKeys:      "identities of signed peers",
		modMsgpack:    "frames no encoder of ours would write",
		modOTLPProto:  "what a receiver of spans gets",
		modProtobuf:   "to read that",
	}},
}

// sameLevel lists the imports that do not point down a level, with the reason.
var sameLevel = map[[2]string]string{
	{"module", "cancel"}: "a module's Context carries a token",
	{"module", "schema"}: "typed modules infer their schemas",

	{"internal/telemetry", "bus"}: "it turns what the bus counts into metrics",
	{"loop", "loop/plan"}:         "a recommendation may hold a plan, which is validated before a person sees it",

	{"executor/system", "executor"}: "system modules report on an executor and are registered with one",
}

// testThird are the modules any test may use besides those of its package.
var testThird = map[string]string{
	modCmp:   "differences people can read",
	modRapid: "property tests",

	modJSONSchema: "called directly, it is the yardstick of benchmarks",

	modPorcupine: "histories of concurrent clients",
}

// mutableVars are the package variables that may change, with the reason.
var mutableVars = map[string]string{
	"executor.strategies": "the seed's class method registers strategies for the whole process; guarded by its own lock",
}

// banned are package names that say nothing about what a package owns.
var banned = []string{"util", "utils", "common", "helper", "helpers", "types", "misc", "shared", "base"}
