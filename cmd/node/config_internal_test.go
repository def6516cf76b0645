package main

import (
	"bytes"
	"errors"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/bus"
	"github.com/apbus/apbus/internal/settings"
)

func parseArgs(t *testing.T, env map[string]string, args ...string) (*config, error) {
	t.Helper()
	cfg, _, err := parse(settings.Spec{
		Name: "apbus-node", Args: args,
		Env: func(k string) (string, bool) { v, ok := env[k]; return v, ok },
	})
	return cfg, err
}

func TestExamplesFlag(t *testing.T) {
	for _, tt := range []struct {
		name string
		env  map[string]string
		args []string
		want groupList
		all  bool
	}{
		{name: "absent"},
		{name: "bare", args: []string{"--examples"}, want: groupList{"all"}, all: true},
		{name: "bare before a flag", args: []string{"--examples", "--id", "n1"}, want: groupList{"all"}, all: true},
		{name: "bare after a flag", args: []string{"--id=n1", "--examples"}, want: groupList{"all"}, all: true},
		{name: "with equals", args: []string{"--examples=math,text"}, want: groupList{"math", "text"}},
		{name: "with a space", args: []string{"--examples", "math,text", "--id", "n1"}, want: groupList{"math", "text"}},
		{name: "environment", env: map[string]string{"APBUS_EXAMPLES": "far"}, want: groupList{"far"}},
		{name: "environment all", env: map[string]string{"APBUS_EXAMPLES": "all"}, want: groupList{"all"}, all: true},
		{name: "flag over environment", env: map[string]string{"APBUS_EXAMPLES": "far"}, args: []string{"--examples=near"}, want: groupList{"near"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cfg, err := parseArgs(t, tt.env, tt.args...)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tt.want, cfg.Examples); d != "" {
				t.Error(d)
			}
			if got := len(cfg.Examples) > 0 && cfg.Examples.groups() == nil; got != tt.all {
				t.Errorf("all = %v, want %v", got, tt.all)
			}
		})
	}
}

func TestDefaults(t *testing.T) {
	cfg, err := parseArgs(t, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := bus.ValidateNodeID(cfg.ID); err != nil {
		t.Errorf("invented ID: %v", err)
	}
	if again, _ := parseArgs(t, nil); again.ID == cfg.ID {
		t.Errorf("two nodes on one machine share the ID %s", cfg.ID)
	}
	cfg.ID = ""
	want := &config{NATS: []string{"nats://127.0.0.1:4222"}, NS: "default", MaxInFlight: 256, TaskSlots: 64, MaxBody: 64 << 20,
		Approvals: "durable", Evidence: "on", Learned: "on", ApprovalExpiry: 24 * time.Hour, DefaultTimeout: 30 * time.Second, GlobalTimeout: 60 * time.Second, GracePeriod: 5 * time.Second, DrainGrace: 10 * time.Second}
	if d := cmp.Diff(want, cfg); d != "" {
		t.Error(d)
	}
}

func TestRefusedSettings(t *testing.T) {
	for _, tt := range []struct {
		name string
		args []string
		want string
	}{
		{"beyond loopback", []string{"--nats", "nats://10.0.0.1:4222"}, "--insecure"},
		{"a name that may be anywhere", []string{"--nats", "nats://nats.example:4222"}, "nats.example"},
		{"one of several", []string{"--nats", "nats://127.0.0.1:4222,nats://10.0.0.1:4222"}, "10.0.0.1"},
		{"bad ID", []string{"--id", "N 1"}, "--id"},
		{"no room", []string{"--max-in-flight", "0"}, "--max-in-flight"},
		{"negative grace", []string{"--drain-grace=-1s"}, "--drain-grace"},
		{"negative approval wait", []string{"--approval-wait=-1s"}, "--approval-wait"},
		{"no time to approve", []string{"--approval-expiry=0s"}, "--approval-expiry"},
		{"approval beyond the retention", []string{"--approval-expiry=400h"}, "--approval-expiry"},
		{"approvals elsewhere", []string{"--approvals=disk"}, "approvals"},
		{"too many replicas", []string{"--replicas=6"}, "--replicas"},
		{"unknown flag", []string{"--bogus"}, "bogus"},
		{"an argument", []string{"math"}, "math"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := parseArgs(t, nil, tt.args...)
			var usage *settings.UsageError
			if !errors.As(err, &usage) {
				t.Fatalf("err = %v, want a usage error", err)
			}
			if !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %q does not name %s", err, tt.want)
			}
		})
	}
}

func TestLoopback(t *testing.T) {
	for server, want := range map[string]bool{
		"nats://127.0.0.1:4222":         true,
		"127.0.0.1:4222":                true,
		"localhost:4222":                true,
		"nats://user:pw@localhost:4222": true,
		"tls://[::1]:4222":              true,
		"nats://127.8.8.8":              true,
		"nats://localhost.example:4222": false,
		"nats://0.0.0.0:4222":           false,
		"nats://192.168.1.1:4222":       false,
		"127.0.0.1.example:4222":        false,
		"":                              false,
	} {
		if got := isLoopback(server); got != want {
			t.Errorf("isLoopback(%q) = %v, want %v", server, got, want)
		}
	}
	if _, err := parseArgs(t, nil, "--nats", "nats://10.0.0.1:4222", "--insecure"); err != nil {
		t.Errorf("--insecure: %v", err)
	}
}

func TestPrintConfigMasksAndVersion(t *testing.T) {
	for _, tt := range []struct {
		name    string
		args    []string
		want    string
		without string
	}{
		{"print-config", []string{"--print-config", "--id=n1", "--examples=math", "--nats=nats://u:geheim@127.0.0.1:4222"}, `(?s)id: n1.*examples:\s+- math`, "geheim"},
		{"version", []string{"--version"}, `apbus-node 1\.2\.3`, "geheim"},
		{"help", []string{"--help"}, `--drain-grace`, "geheim"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var out bytes.Buffer
			err := run(t.Context(), settings.Spec{Name: "apbus-node", Version: "1.2.3", Args: tt.args, Stdout: &out})
			if err != nil {
				t.Fatal(err)
			}
			if !regexp.MustCompile(tt.want).MatchString(out.String()) || strings.Contains(out.String(), tt.without) {
				t.Errorf("printed:\n%s", out.String())
			}
		})
	}
}
