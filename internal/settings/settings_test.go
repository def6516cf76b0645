package settings_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/internal/settings"
)

type config struct {
	Listen      string        `help:"Address." default:"127.0.0.1:8420"`
	NATS        []string      `name:"nats" help:"Servers."`
	MaxInFlight int           `help:"Calls at once." default:"256"`
	Wait        time.Duration `help:"How long." default:"30s"`
	Insecure    bool          `help:"Open up."`
	Token       string        `help:"Bearer token." secret:""`
	Once        string        `help:"Only here." local:""`
	Limit       *int          `help:"Optional."`
}

func defaults() config {
	return config{Listen: "127.0.0.1:8420", MaxInFlight: 256, Wait: 30 * time.Second}
}

func environment(vars map[string]string) func(string) (string, bool) {
	return func(k string) (string, bool) { v, ok := vars[k]; return v, ok }
}

func file(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "router.yaml")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestSourcesInOrderOfStrength(t *testing.T) {
	tests := []struct {
		name string
		file string
		env  map[string]string
		args []string
		want func(*config)
	}{
		{name: "defaults", want: func(*config) {}},
		{
			name: "file", file: "listen: 10.0.0.1:80\nmax-in-flight: 9\nwait: 2m\ninsecure: true\nnats: [nats://a, 'nats://b,c']\nlimit: 4\n",
			want: func(c *config) {
				four := 4
				*c = config{Listen: "10.0.0.1:80", MaxInFlight: 9, Wait: 2 * time.Minute, Insecure: true, NATS: []string{"nats://a", "nats://b,c"}, Limit: &four}
			},
		},
		{
			name: "environment over file", file: "listen: file\nwait: 1s\n", env: map[string]string{"APBUS_LISTEN": "env", "APBUS_MAX_IN_FLIGHT": "7"},
			want: func(c *config) { c.Listen, c.Wait, c.MaxInFlight = "env", time.Second, 7 },
		},
		{
			name: "flag over environment and file", file: "listen: file\ninsecure: true\n",
			env: map[string]string{"APBUS_LISTEN": "env", "APBUS_NATS": "nats://a,nats://b"}, args: []string{"--listen=flag"},
			want: func(c *config) { c.Listen, c.Insecure, c.NATS = "flag", true, []string{"nats://a", "nats://b"} },
		},
		{name: "a flag that repeats the default still wins", env: map[string]string{"APBUS_LISTEN": "env"}, args: []string{"--listen=127.0.0.1:8420"}, want: func(*config) {}},
		{name: "an empty variable is absent", env: map[string]string{"APBUS_LISTEN": "", "APBUS_WAIT": ""}, want: func(*config) {}},
		{name: "null is absent", file: "listen:\nnats: ~\n", want: func(*config) {}},
		{name: "one value for a list", file: "nats: 'nats://a,b'\n", want: func(c *config) { c.NATS = []string{"nats://a,b"} }},
		{name: "an alias", file: "listen: &x here\ntoken: *x\n", want: func(c *config) { c.Listen, c.Token = "here", "here" }},
		{name: "false in the environment", file: "insecure: true\n", env: map[string]string{"APBUS_INSECURE": "false"}, want: func(*config) {}},
		{name: "an empty file", file: "# nothing\n", want: func(*config) {}},
		{name: "a local flag ignores the environment", env: map[string]string{"APBUS_ONCE": "x"}, want: func(*config) {}},
		{name: "a local flag on the command line", args: []string{"--once=x"}, want: func(c *config) { c.Once = "x" }},
	}
	for _, tt := range tests {
		for _, how := range []string{"flag", "variable"} {
			if tt.file == "" && how == "variable" {
				continue
			}
			t.Run(tt.name+" by "+how, func(t *testing.T) {
				args, env := tt.args, map[string]string{}
				for k, v := range tt.env {
					env[k] = v
				}
				if tt.file != "" && how == "flag" {
					args = append([]string{"--config", file(t, tt.file)}, args...)
				} else if tt.file != "" {
					env["APBUS_CONFIG"] = file(t, tt.file)
				}
				var got config
				res, err := settings.Parse(settings.Spec{Name: "p", Args: args, Env: environment(env)}, &got)
				if err != nil {
					t.Fatal(err)
				}
				if res.Done || res.Logger == nil {
					t.Errorf("got Done %v, Logger %v", res.Done, res.Logger)
				}
				want := defaults()
				tt.want(&want)
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("settings (-want +got):\n%s", diff)
				}
			})
		}
	}
}

func TestUsageErrors(t *testing.T) {
	tests := []struct {
		name string
		file string
		env  map[string]string
		args []string
		want []string // all contained in the message
	}{
		{name: "unknown flag", args: []string{"--listne=x"}, want: []string{"--listne", "--listen"}},
		{name: "unknown key", file: "wait: 1s\n\nlistne: x\n", want: []string{"router.yaml:3", `"listne"`, `"listen"`}},
		{name: "underscores", file: "max_in_flight: 3\n", want: []string{"router.yaml:1", `"max-in-flight"`}},
		{name: "key of a flag that makes no sense in a file", file: "print-config: true\n", want: []string{"router.yaml:1", "print-config"}},
		{name: "key of a local flag", file: "once: x\n", want: []string{"router.yaml:1", "unknown key"}},
		{name: "key twice", file: "listen: a\nlisten: b\n", want: []string{"router.yaml:2", "listen", "twice"}},
		{name: "a list where one value is due", file: "listen: [a]\n", want: []string{"router.yaml:1", "listen"}},
		{name: "a mapping", file: "nats: {a: b}\n", want: []string{"router.yaml:1", "nats"}},
		{name: "a nested list", file: "nats: [[a]]\n", want: []string{"router.yaml:1", "nats"}},
		{name: "no mapping", file: "- a\n", want: []string{"router.yaml:1", "mapping"}},
		{name: "broken YAML", file: "listen: [\n", want: []string{"router.yaml"}},
		{name: "wrong type in the file", file: "wait: 1s\nmax-in-flight: many\n", want: []string{"router.yaml:2", "--max-in-flight"}},
		{name: "wrong type in the environment", env: map[string]string{"APBUS_WAIT": "long"}, want: []string{"APBUS_WAIT", "--wait"}},
		{name: "wrong type of a flag", args: []string{"--max-in-flight=x"}, want: []string{"--max-in-flight"}},
		{name: "log level", args: []string{"--log-level=loud"}, want: []string{"--log-level", "debug"}},
		{name: "no such file", args: []string{"--config=/nonexistent/x.yaml"}, want: []string{"/nonexistent/x.yaml"}},
		{name: "stray argument", args: []string{"stray"}, want: []string{"stray"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			args := tt.args
			if tt.file != "" {
				args = append(args, "--config", file(t, tt.file))
			}
			var cfg config
			_, err := settings.Parse(settings.Spec{Name: "prog", Args: args, Env: environment(tt.env)}, &cfg)
			var usage *settings.UsageError
			if !errors.As(err, &usage) {
				t.Fatalf("got %v, want a usage error", err)
			}
			if got := settings.ExitCode(err); got != 2 {
				t.Errorf("exit code %d, want 2", got)
			}
			for _, part := range append(tt.want, "prog --help") {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("message %q lacks %q", err, part)
				}
			}
		})
	}
}

func TestAnswersInsteadOfRunning(t *testing.T) {
	tests := []struct {
		name string
		args []string
		want []string
	}{
		{name: "help", args: []string{"--help"}, want: []string{"--listen", "127.0.0.1:8420", "$APBUS_LISTEN", "default 256", "default 30s", "default false", "default none", "--config", "--log-level"}},
		{name: "version", args: []string{"--version"}, want: []string{"prog 1.2.3\n"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var out bytes.Buffer
			var cfg config
			res, err := settings.Parse(settings.Spec{Name: "prog", Version: "1.2.3", Args: tt.args, Stdout: &out}, &cfg)
			if err != nil || !res.Done {
				t.Fatalf("got %+v, %v, want Done", res, err)
			}
			for _, part := range tt.want {
				if !strings.Contains(out.String(), part) {
					t.Errorf("output lacks %q:\n%s", part, out.String())
				}
			}
		})
	}
}

func TestHelpDoesNotOfferAVariableForALocalFlag(t *testing.T) {
	var out bytes.Buffer
	var cfg config
	if _, err := settings.Parse(settings.Spec{Name: "prog", Args: []string{"--help"}, Stdout: &out}, &cfg); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(out.String(), "APBUS_ONCE") {
		t.Errorf("help offers APBUS_ONCE:\n%s", out.String())
	}
}

func TestPrintConfig(t *testing.T) {
	path := file(t, "wait: 5s\n")
	args := []string{"--config", path, "--nats=nats://u:hunter2@h:1,nats://plain:2", "--token=hunter2", "--print-config"}
	var out bytes.Buffer
	var cfg config
	res, err := settings.Parse(settings.Spec{Name: "prog", Args: args, Stdout: &out, Env: environment(map[string]string{"APBUS_INSECURE": "1"})}, &cfg)
	if err != nil || !res.Done {
		t.Fatalf("got %+v, %v, want Done", res, err)
	}
	got := strings.ReplaceAll(out.String(), path, "FILE")
	want := `# from default
listen: 127.0.0.1:8420
# from flag
nats:
  - nats://********@h:1
  - nats://plain:2
# from default
max-in-flight: 256
# from FILE:1
wait: 5s
# from APBUS_INSECURE
insecure: true
# from flag
token: '********'
# from default
limit: null
# from default
log-level: info
`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("printed (-want +got):\n%s", diff)
	}
}

// What is printed works as a file and means the same.
func TestPrintedConfigReadsBack(t *testing.T) {
	args := []string{"--listen=:0", "--nats=nats://a,nats://b", "--max-in-flight=3", "--wait=1m30s", "--insecure", "--limit=5"}
	var first, second bytes.Buffer
	var cfg, again config
	if _, err := settings.Parse(settings.Spec{Name: "p", Args: append(args, "--print-config"), Stdout: &first}, &cfg); err != nil {
		t.Fatal(err)
	}
	path := file(t, first.String())
	if _, err := settings.Parse(settings.Spec{Name: "p", Args: []string{"--config", path, "--print-config"}, Stdout: &second}, &again); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(cfg, again); diff != "" {
		t.Errorf("settings read back (-want +got):\n%s", diff)
	}
	if again.Limit == nil || *again.Limit != 5 {
		t.Errorf("limit read back as %v, want 5", again.Limit)
	}
}

func TestCommands(t *testing.T) {
	var cli struct {
		Router string `help:"URL." default:"http://r"`
		Call   struct {
			ID      string        `arg:""`
			Timeout time.Duration `help:"Limit."`
		} `cmd:"" help:"Call."`
		Nodes struct {
			Timeout time.Duration `help:"Limit."`
		} `cmd:"" help:"Nodes."`
	}
	env := environment(map[string]string{"APBUS_ROUTER": "http://env", "APBUS_TIMEOUT": "3s"})
	res, err := settings.Parse(settings.Spec{Name: "cli", Args: []string{"call", "math.add"}, Env: env}, &cli)
	if err != nil {
		t.Fatal(err)
	}
	if res.Command != "call <id>" || cli.Router != "http://env" || cli.Call.Timeout != 3*time.Second || cli.Call.ID != "math.add" {
		t.Errorf("got command %q, %+v", res.Command, cli)
	}
	var out bytes.Buffer
	res, err = settings.Parse(settings.Spec{Name: "cli", Version: "9", Args: []string{"--version"}, Stdout: &out}, &cli)
	if err != nil || !res.Done || out.String() != "cli 9\n" {
		t.Errorf("version without a command: %+v, %v, %q", res, err, out.String())
	}
}

func TestLogger(t *testing.T) {
	var logs bytes.Buffer
	var cfg config
	res, err := settings.Parse(settings.Spec{Name: "p", Args: []string{"--log-level=warn"}, Stderr: &logs}, &cfg)
	if err != nil {
		t.Fatal(err)
	}
	res.Logger.Info("quiet")
	res.Logger.Warn("loud", "call_id", "c1")
	var got map[string]any
	if err := json.Unmarshal(logs.Bytes(), &got); err != nil {
		t.Fatalf("not one JSON record: %v\n%s", err, logs.String())
	}
	if got["msg"] != "loud" || got["call_id"] != "c1" {
		t.Errorf("got %v", got)
	}
	if settings.NewLogger(&logs, slog.LevelError).Enabled(t.Context(), slog.LevelWarn) {
		t.Error("a logger for errors writes warnings")
	}
}

func TestExitCode(t *testing.T) {
	tests := []struct {
		name string
		err  error
		want int
	}{
		{"ok", nil, 0},
		{"failed", errors.New("x"), 1},
		{"usage", settings.Usagef("x"), 2},
		{"wrapped usage", fmt.Errorf("start: %w", settings.Usagef("x")), 2},
		{"interrupted", fmt.Errorf("call: %w", settings.ErrInterrupted), 130},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := settings.ExitCode(tt.err); got != tt.want {
				t.Errorf("got %d, want %d", got, tt.want)
			}
		})
	}
}

func TestNearest(t *testing.T) {
	names := []string{"listen", "log-level", "nats", "ns", "tokens"}
	tests := []struct{ key, want string }{
		{"listen", "listen"}, {"loglevel", "log-level"}, {"n", "ns"}, {"token", "tokens"}, {"completely-else", ""},
	}
	for _, tt := range tests {
		t.Run(tt.key, func(t *testing.T) {
			if got := settings.Nearest(tt.key, names); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func FuzzConfigFile(f *testing.F) {
	for _, s := range []string{"listen: x\n", "nats: [a, b]\n", "? {}\n: x", "&a [*a]", "listen: *x", "<<: {listen: x}", "{}", "---\n---\n"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, content string) {
		var cfg config
		_, err := settings.Parse(settings.Spec{Name: "p", Args: []string{"--config", file(t, content)}}, &cfg)
		var usage *settings.UsageError
		if err != nil && !errors.As(err, &usage) {
			t.Errorf("got %v, want a usage error", err)
		}
	})
}
