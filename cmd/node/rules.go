package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/apbus/apbus/executor/acl"
)

// rulesPoll is how often the rule file is looked at.
const rulesPoll = 500 * time.Millisecond

// loadRules reads the rule file; without one there are no rules.
func loadRules(path string, log *slog.Logger) (*acl.Policy, error) {
	if path == "" {
		return nil, nil
	}
	p, err := acl.Load(path, acl.Options{Logger: log})
	if err != nil {
		return nil, fmt.Errorf("--acl: %w", err)
	}
	for _, finding := range p.Validate() {
		log.Warn("ACL rule looks wrong", "finding", finding)
	}
	return p, nil
}

// stamp is what changes when a file does, as far as its folder knows.
type stamp struct {
	modified time.Time
	size     int64
	missing  bool
}

func stampOf(path string) stamp {
	info, err := os.Stat(path)
	if err != nil {
		return stamp{missing: true}
	}
	return stamp{modified: info.ModTime(), size: info.Size()}
}

// watchRules reads the rules again whenever their file is no longer as it was
// seen, until ctx is done. Rules that cannot be read leave the old ones in force.
func watchRules(ctx context.Context, p *acl.Policy, path string, seen stamp, log *slog.Logger) {
	tick := time.NewTicker(rulesPoll)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := stampOf(path)
		if now == seen {
			continue
		}
		seen = now
		if err := p.Reload(); err != nil {
			log.Error("cannot read the changed ACL rules, the old ones stay in force", "path", path, "cause", err)
			continue
		}
		log.Info("ACL rules read again", "path", path, "rules", len(p.Rules()))
	}
}
