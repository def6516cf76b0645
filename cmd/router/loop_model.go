package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/apbus/apbus/internal/settings"
	"github.com/apbus/apbus/loop"
	"github.com/apbus/apbus/loop/backend"
)

// wantsModel reports whether a model takes part in the loop.
func (c *config) wantsModel() bool { return c.LLMCmd != "" || c.LLMURL != "" || c.LLMReplay != "" }

// checkLoop finds what no single flag shows.
func (c *config) checkLoop() error {
	given := 0
	for _, v := range []string{c.LLMCmd, c.LLMURL, c.LLMReplay} {
		if v != "" {
			given++
		}
	}
	switch {
	case given > 1:
		return settings.Usagef("--llm-cmd, --llm-url and --llm-replay exclude each other")
	case c.LLMURL != "" && c.LLMModel == "":
		return settings.Usagef("--llm-url needs --llm-model")
	case c.LLMEmbed != "" && c.LLMURL == "":
		return settings.Usagef("--llm-embed-model goes with --llm-url")
	case c.LLMRecord != "" && (given == 0 || c.LLMReplay != ""):
		return settings.Usagef("--llm-record goes with --llm-cmd or --llm-url")
	case c.LLMTimeout <= 0:
		return settings.Usagef("--llm-timeout must be positive")
	case c.LoopEvery < 0:
		return settings.Usagef("--loop-every must not be negative")
	case c.wantsModel() && c.Evidence == evidenceOff:
		return settings.Usagef("the loop lives of evidence: do without --evidence off")
	}
	return nil
}

// openPolicy reads what the host allows; nil is the default.
func openPolicy(path string) (*loop.Policy, error) {
	if path == "" {
		return nil, nil
	}
	raw, err := os.ReadFile(path) //nolint:gosec // the operator's own flag
	if err != nil {
		return nil, settings.Usagef("--loop-policy: %w", err)
	}
	p, err := loop.ParsePolicy(raw)
	if err != nil {
		return nil, settings.Usagef("--loop-policy %s: %w", path, err)
	}
	return &p, nil
}

// openModel makes the model that the flags name, nil for none, and asks who it is,
// so that one that cannot work fails here. What leaves the process has no
// identities in it, and no pass asks without bounds.
func openModel(ctx context.Context, cfg *config, log *slog.Logger) (loop.Backend, error) {
	model, err := bareModel(ctx, cfg, log)
	if model == nil || err != nil {
		return nil, err
	}
	if cfg.LLMRecord != "" {
		const private = 0o600
		f, err := os.OpenFile(cfg.LLMRecord, os.O_CREATE|os.O_APPEND|os.O_WRONLY, private) //nolint:gosec // the operator's own flag
		if err != nil {
			return nil, settings.Usagef("--llm-record: %w", err)
		}
		// It stays open as long as the process lives; each line is written at once.
		model = backend.NewRecorder(model, f, backend.RecorderOptions{})
	}
	log.Info("a model takes part in the loop", "model", model.Model())
	return backend.NewBudget(backend.NewPseudonymize(model), backend.Limits{}), nil
}

func bareModel(ctx context.Context, cfg *config, log *slog.Logger) (loop.Backend, error) {
	switch {
	case cfg.LLMCmd != "":
		c, err := backend.NewCommand(ctx, cfg.LLMCmd, backend.CommandOptions{
			Model: cfg.LLMModel, Timeout: cfg.LLMTimeout, Env: os.Environ(), Scrub: secretNames(),
			Stderr: &modelLog{log: log},
		})
		if err != nil {
			return nil, fmt.Errorf("--llm-cmd: %w", err)
		}
		return c, nil
	case cfg.LLMURL != "":
		h, err := backend.NewHTTP(backend.HTTPOptions{BaseURL: cfg.LLMURL, Model: cfg.LLMModel, Key: cfg.LLMKey, Timeout: cfg.LLMTimeout})
		if err != nil {
			return nil, settings.Usagef("--llm-url: %w", err)
		}
		return h, nil
	case cfg.LLMReplay != "":
		f, err := os.Open(cfg.LLMReplay)
		if err != nil {
			return nil, settings.Usagef("--llm-replay: %w", err)
		}
		defer func() { _ = f.Close() }() // only read
		r, err := backend.NewReplayer(f)
		if err != nil {
			return nil, settings.Usagef("--llm-replay: %w", err)
		}
		return r, nil
	}
	return nil, nil
}

// embedTimeout bounds one request to the embedder: a pass makes one for each draft and
// holds a lock meanwhile.
const embedTimeout = 20 * time.Second

// openEmbedder makes what compares lessons; nil for none.
func openEmbedder(cfg *config) (loop.Embedder, error) {
	if cfg.LLMEmbed == "" {
		return nil, nil
	}
	e, err := backend.NewEmbedder(backend.HTTPOptions{BaseURL: cfg.LLMURL, Model: cfg.LLMEmbed, Key: cfg.LLMKey, Timeout: min(cfg.LLMTimeout, embedTimeout)})
	if err != nil {
		return nil, settings.Usagef("--llm-url: %w", err)
	}
	return e, nil
}

// secretNames are variables of the router that a model's command does not get.
func secretNames() []string {
	return []string{"APBUS_TOKEN", "APBUS_LLM_KEY", "APBUS_CREDS", "APBUS_KEY"}
}

// modelLog writes to the log what a model's command says on its standard error.
type modelLog struct{ log *slog.Logger }

// Write logs at most a little of each piece.
func (m *modelLog) Write(p []byte) (int, error) {
	const most = 500
	m.log.Debug("the command of the model says", "text", strings.ToValidUTF8(string(p[:min(len(p), most)]), ""))
	return len(p), nil
}
