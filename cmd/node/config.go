package main

import (
	"crypto/rand"
	"net/netip"
	"net/url"
	"os"
	"reflect"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"github.com/apbus/apbus/bus"
	"github.com/apbus/apbus/internal/settings"
)

// config is what the node can be told; package settings adds the common flags.
type config struct {
	NATS           []string      `name:"nats" default:"nats://127.0.0.1:4222" placeholder:"URL" help:"NATS servers to connect to."`
	Creds          string        `placeholder:"FILE" help:"NATS credentials file."`
	ID             string        `name:"id" placeholder:"NAME" help:"ID of this node, [a-z0-9_-]{1,64}; made of the host name when absent."`
	NS             string        `name:"ns" default:"default" placeholder:"NAME" help:"Namespace on the bus."`
	Examples       groupList     `placeholder:"GROUP,…" help:"Host the built-in example modules, all or those of the groups math, text, demo, near, far, orders, inventory, payments."`
	EffectLog      string        `placeholder:"FILE" help:"File that demo.effect appends to."`
	MaxInFlight    int           `default:"256" placeholder:"N" help:"How many calls run at once; twice as many may wait."`
	MaxPerModule   int           `default:"0" placeholder:"N" help:"How many calls of one module run at once; 0 leaves other modules a fifth of --max-in-flight."`
	MaxPerIdentity int           `default:"0" placeholder:"N" help:"How many calls of one identity run at once, those without one counting as one; 0 is no limit."`
	TaskSlots      int           `default:"64" placeholder:"N" help:"How many tasks run at once; 0 takes none."`
	MaxBody        int           `default:"67108864" placeholder:"BYTES" help:"Largest inputs and output of a call."`
	ACL            string        `name:"acl" placeholder:"FILE" help:"Rule file saying who may call what; read again when it changes. Without one everybody may."`
	SysModules     bool          `help:"Host the modules system.health.*, system.manifest.* and system.usage.*, by which this node tells of itself."`
	SysControl     bool          `help:"Also host system.control.*, by which settings and modules of this node are changed, each time with an approval."`
	Overrides      string        `placeholder:"FILE" help:"File that keeps what system.control.* changed over a restart."`
	Approvals      string        `default:"durable" enum:"durable,memory" help:"Where calls that need a person wait: on JetStream (durable), where reviewers find them, or in this process (memory), where nobody does."`
	ApprovalWait   time.Duration `default:"0s" help:"How long such a call is held for a decision; 0 answers APPROVAL_PENDING at once."`
	ApprovalExpiry time.Duration `default:"24h" help:"How long a request can be decided."`
	DefaultTimeout time.Duration `default:"30s" help:"Limit of a call of a module that declares none; 0 is none."`
	GlobalTimeout  time.Duration `default:"60s" help:"Limit of a whole tree of calls that begins on this node, whatever its modules declare; 0 is none."`
	GracePeriod    time.Duration `default:"5s" help:"How long a module may clean up after its time is over."`
	DrainGrace     time.Duration `default:"10s" help:"How long accepted calls may run on when the node stops."`
	Bindings       []string      `placeholder:"FILE" help:"YAML files that make modules of commands and HTTP endpoints; read again when they change."`
	MetricsListen  string        `placeholder:"HOST:PORT" help:"Serve Prometheus metrics at /metrics of this address; port 0 picks a free one."`
	TraceSteps     bool          `help:"With tracing, which the OTEL_* variables turn on, also make a span of every step of a call."`
	LogCalls       bool          `help:"Log the end of every call, without its values."`
	Events         string        `placeholder:"FILE" help:"YAML list of who gets this node's events: stdout, file, webhook, a2a, filter."`
	Learned        string        `default:"on" enum:"on,off" help:"Host plans and run revised programs that the loop proposed and people applied: on or off."`
	Evidence       string        `default:"on" enum:"on,off" help:"Leave evidence of calls, denials and decisions, redacted, on JetStream: on or off."`
	Replicas       int           `default:"0" placeholder:"N" help:"Replicas of the streams and buckets that are created, the router's --replicas; 0 is 1."`
	Insecure       bool          `help:"Connect beyond this machine although messages are not authenticated."`
}

// maxReplicas is the most that NATS takes.
const maxReplicas = 5

// allGroups is what a bare --examples means.
const allGroups = "all"

// groupList is the value of --examples, a flag that may stand alone.
type groupList []string

// groups returns what to ask package examples for; nil is all.
func (g groupList) groups() []string {
	for _, name := range g {
		if name == allGroups {
			return nil
		}
	}
	return g
}

// wantsSystem reports whether the node hosts system modules; those that control
// come with those that read.
func (c *config) wantsSystem() bool { return c.SysModules || c.SysControl }

// decodeGroups reads --examples with or without a value. The node takes no
// arguments, so a word after the flag is its value.
func decodeGroups(ctx *kong.DecodeContext, target reflect.Value) error {
	list := groupList{allGroups}
	if next := ctx.Scan.Peek(); next.IsValue() {
		list = nil
		for name := range strings.SplitSeq(ctx.Scan.Pop().String(), ",") {
			if name = strings.TrimSpace(name); name != "" {
				list = append(list, name)
			}
		}
	}
	target.Set(reflect.ValueOf(list))
	return nil
}

func parse(spec settings.Spec) (*config, *settings.Result, error) {
	cfg := &config{}
	spec.Options = append(spec.Options, kong.TypeMapper(reflect.TypeFor[groupList](), kong.MapperFunc(decodeGroups)))
	res, err := settings.Parse(spec, cfg)
	if err != nil || res.Done {
		return cfg, res, err
	}
	return cfg, res, cfg.check()
}

// check finds what no single flag shows, and makes an ID when none was given.
func (c *config) check() error {
	if c.ID == "" {
		c.ID = inventID()
	}
	if err := bus.ValidateNodeID(c.ID); err != nil {
		return settings.Usagef("--id: %w", err)
	}
	if c.MaxInFlight < 1 {
		return settings.Usagef("--max-in-flight must be at least 1")
	}
	if c.MaxPerModule < 0 || c.MaxPerIdentity < 0 {
		return settings.Usagef("--max-per-module and --max-per-identity must not be negative")
	}
	if c.Replicas < 0 || c.Replicas > maxReplicas {
		return settings.Usagef("--replicas must be from 0 to %d", maxReplicas)
	}
	if c.MaxBody < 1 {
		return settings.Usagef("--max-body must be at least 1")
	}
	if c.Overrides != "" && !c.SysControl {
		return settings.Usagef("--overrides keeps what system.control.* changes: give --sys-control too")
	}
	for _, d := range []struct {
		flag  string
		value time.Duration
	}{
		{"default-timeout", c.DefaultTimeout}, {"global-timeout", c.GlobalTimeout},
		{"grace-period", c.GracePeriod}, {"drain-grace", c.DrainGrace},
	} {
		if d.value < 0 {
			return settings.Usagef("--%s must not be negative", d.flag)
		}
	}
	if err := c.checkApprovals(); err != nil {
		return err
	}
	if err := c.checkWatch(); err != nil {
		return err
	}
	for _, server := range c.NATS {
		if !c.Insecure && !isLoopback(server) {
			return settings.Usagef("the NATS server %s is not on this machine, and messages are not authenticated in open mode: give --insecure if you mean it", hostOf(server))
		}
	}
	return nil
}

// inventID names the node after its machine; the ending keeps several nodes on
// one machine apart.
func inventID() string {
	host, err := os.Hostname()
	if err != nil {
		host = ""
	}
	host = strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '-', r == '_':
			return r
		}
		return '-'
	}, strings.ToLower(host))
	const most = 50
	if host = strings.Trim(host[:min(len(host), most)], "-"); host == "" {
		host = "node"
	}
	return host + "-" + strings.ToLower(rand.Text()[:6])
}

// hostOf returns the host of a NATS URL, whose scheme is optional.
func hostOf(server string) string {
	if !strings.Contains(server, "://") {
		server = "nats://" + server
	}
	u, err := url.Parse(strings.TrimSpace(server))
	if err != nil {
		return ""
	}
	return u.Hostname()
}

// isLoopback reports whether a NATS URL certainly names this machine. Another
// name than localhost may resolve to anything and does not count.
func isLoopback(server string) bool {
	host := hostOf(server)
	if strings.EqualFold(host, "localhost") {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.IsLoopback()
}

// withoutSecrets returns the URLs without the credentials inside them.
func withoutSecrets(servers []string) []string {
	list := make([]string, len(servers))
	for i, s := range servers {
		list[i] = s
		if u, err := url.Parse(s); err == nil && u.User != nil {
			u.User = nil
			list[i] = u.String()
		}
	}
	return list
}
