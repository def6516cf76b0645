package main

import (
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/apbus/apbus/gateway"
	"github.com/apbus/apbus/internal/settings"
)

// config is what the router can be told; package settings adds the common flags.
type config struct {
	Listen      string        `default:"127.0.0.1:8420" placeholder:"HOST:PORT" help:"Address of the HTTP API; port 0 picks a free one."`
	NATS        []string      `name:"nats" placeholder:"URL" help:"NATS servers to use instead of the embedded one."`
	EmbedListen string        `default:"127.0.0.1:4222" placeholder:"HOST:PORT" help:"Address of the embedded NATS server; port 0 picks a free one."`
	Data        string        `default:"apbus-data" placeholder:"DIR" help:"Data directory of the embedded server."`
	Durability  string        `default:"power-safe" enum:"power-safe,process-safe" help:"What the embedded server's acknowledged data survives: a loss of power (power-safe), or only the end of processes (process-safe)."`
	Tokens      string        `placeholder:"FILE" help:"Tokens file: who may use the API. Without one only callers on this machine are admitted."`
	AdmitLocal  bool          `help:"With --tokens: admit callers on this machine without a token too, without an identity; reviewing needs one all the same."`
	Creds       string        `placeholder:"FILE" help:"NATS credentials file, for --nats."`
	NS          string        `name:"ns" default:"default" placeholder:"NAME" help:"Namespace on the bus."`
	Insecure    bool          `help:"Listen or connect beyond this machine although messages are not authenticated."`
	MaxBody     int64         `default:"67108864" placeholder:"BYTES" help:"Largest request body, and largest inputs and output of a call on the bus."`
	MaxHeader   int           `default:"32768" placeholder:"BYTES" help:"Largest request line and headers together."`
	MaxRequests int           `default:"1024" placeholder:"N" help:"Calls and checks served at once."`
	MaxDetached int           `default:"1024" placeholder:"N" help:"Detached calls running at once."`
	Replicas    int           `default:"0" placeholder:"N" help:"Replicas of the streams and buckets that are created: tasks, approvals, evidence, knowledge, catalogue, bodies; 0 is 1. On a cluster give 3, here and to the nodes: that survives the loss of a server, of its power too. What exists stays as it is."`
	MaxTasks    int           `default:"1000000" placeholder:"N" help:"How many tasks may be waiting or running."`
	TaskLease   time.Duration `default:"15s" help:"How long a node owns a task without renewing that, and the time in which a lost one is noticed; at least 1s, and the same for all routers."`

	SysModules bool `help:"Answer system.health.*, system.manifest.* and system.usage.* for all nodes on the bus too, as the node router, to those who name it; over HTTP the router always does."`
	SysControl bool `help:"Also answer system.control.* for all nodes there."`

	Evidence string `default:"on" enum:"on,off" help:"Show the evidence of what happened, and add decisions and calls that reached no node: on or off."`

	LLMCmd     string        `name:"llm-cmd" placeholder:"CMD" help:"Command that is the model of the loop: a request of JSON on its input, the answer on its output. Split at white space; there is no shell."`
	LLMURL     string        `name:"llm-url" placeholder:"URL" help:"OpenAI-compatible API that has the model of the loop, such as https://host/v1."`
	LLMModel   string        `name:"llm-model" placeholder:"NAME" help:"Name of the model, for --llm-url; with --llm-cmd what it says itself unless given."`
	LLMEmbed   string        `name:"llm-embed-model" placeholder:"NAME" help:"Model for embeddings of --llm-url, by which lessons that say the same are found; without one their words are compared."`
	LLMKey     string        `name:"llm-key" secret:"" placeholder:"KEY" help:"Key for --llm-url; better given as APBUS_LLM_KEY."`
	LLMTimeout time.Duration `name:"llm-timeout" default:"2m" help:"How long the model may take for one answer."`
	LLMRecord  string        `name:"llm-record" placeholder:"FILE" help:"Append each exchange with the model to this file."`
	LLMReplay  string        `name:"llm-replay" placeholder:"FILE" help:"Take the answers of the model from such a file, in its order, instead of a model."`
	LoopPolicy string        `name:"loop-policy" placeholder:"FILE" help:"JSON file of what the loop may do."`
	LoopEvery  time.Duration `name:"loop-every" default:"1h" help:"How long after the last pass of the loop, of whichever router, the next one is made; 0 makes none but those that are asked for."`

	MetricsListen string `placeholder:"HOST:PORT" help:"Serve Prometheus metrics at /metrics of this address, to everybody who reaches it, instead of the HTTP API's, to those who may call."`

	Events string `placeholder:"FILE" help:"YAML list of who gets this router's events, of nodes that come and go and of decisions about approvals: stdout, file, webhook, a2a, filter."`

	Heartbeat   time.Duration `default:"15s" help:"How long an event stream may be silent before a comment keeps it alive."`
	StreamStall time.Duration `default:"2m" help:"How long the reader of an event stream may take nothing before its call is cancelled."`
}

// maxReplicas is the most that NATS takes.
const maxReplicas = 5

func parse(spec settings.Spec) (*config, *settings.Result, error) {
	cfg := &config{}
	res, err := settings.Parse(spec, cfg)
	if err != nil || res.Done {
		return cfg, res, err
	}
	return cfg, res, cfg.check()
}

// check finds what no single flag shows.
func (c *config) check() error {
	if c.AdmitLocal && c.Tokens == "" {
		return settings.Usagef("--admit-local goes with --tokens; without a tokens file callers on this machine are admitted anyway")
	}
	if err := c.checkAddress("listen", c.Listen); err != nil {
		return err
	}
	if c.MetricsListen != "" {
		if err := c.checkAddress("metrics-listen", c.MetricsListen); err != nil {
			return err
		}
	}
	if len(c.NATS) == 0 {
		if c.Creds != "" {
			return settings.Usagef("--creds is for the servers of --nats; the embedded server takes none")
		}
		if err := c.checkAddress("embed-listen", c.EmbedListen); err != nil {
			return err
		}
	}
	for _, server := range c.NATS {
		if !c.Insecure && !gateway.IsLoopbackHost(hostOf(server)) {
			return settings.Usagef("the NATS server %s is not on this machine, and messages are not authenticated in open mode: give --insecure if you mean it", hostOf(server))
		}
	}
	if c.Replicas < 0 || c.Replicas > maxReplicas {
		return settings.Usagef("--replicas must be from 0 to %d", maxReplicas)
	}
	if c.Replicas > 1 && len(c.NATS) == 0 {
		return settings.Usagef("--replicas is for the cluster of --nats; the embedded server is one")
	}
	if c.TaskLease < time.Second {
		return settings.Usagef("--task-lease must be at least 1s")
	}
	if c.Heartbeat <= 0 || c.StreamStall <= 0 {
		return settings.Usagef("--heartbeat and --stream-stall must be positive")
	}
	for _, limit := range []struct {
		flag  string
		value int64
	}{
		{"max-body", c.MaxBody}, {"max-header", int64(c.MaxHeader)},
		{"max-requests", int64(c.MaxRequests)}, {"max-detached", int64(c.MaxDetached)},
		{"max-tasks", int64(c.MaxTasks)},
	} {
		if limit.value < 1 {
			return settings.Usagef("--%s must be at least 1", limit.flag)
		}
	}
	return c.checkLoop()
}

func (c *config) checkAddress(flag, address string) error {
	host, _, err := net.SplitHostPort(address)
	switch {
	case err != nil:
		return settings.Usagef("--%s: %w", flag, err)
	case !c.Insecure && !gateway.IsLoopbackHost(host):
		return settings.Usagef("--%s %s is reachable from other machines, and messages are not authenticated in open mode: give --insecure if you mean it", flag, address)
	}
	return nil
}

// hostOf returns the host of a NATS URL, whose scheme is optional.
func hostOf(server string) string {
	u, err := serverURL(server)
	if err != nil {
		return ""
	}
	return u.Hostname()
}

// withoutSecrets returns a NATS URL without the credentials inside it.
func withoutSecrets(server string) string {
	u, err := serverURL(server)
	if err != nil {
		return "?"
	}
	u.User = nil
	return u.String()
}

func serverURL(server string) (*url.URL, error) {
	if !strings.Contains(server, "://") {
		server = "nats://" + server
	}
	return url.Parse(strings.TrimSpace(server))
}
