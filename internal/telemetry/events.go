package telemetry

import (
	"fmt"
	"io"
	"log/slog"
	"os"

	yaml "go.yaml.in/yaml/v3"

	"github.com/apbus/apbus/executor/events"
)

// OpenEvents subscribes what a YAML file lists, for the programs' --events; stdout is
// where subscribers of that type write. Without a path there is no emitter, and nil is
// returned.
func OpenEvents(path string, stdout io.Writer, log *slog.Logger) (*events.Emitter, error) {
	if path == "" {
		return nil, nil
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the subscribers: %w", err)
	}
	var list []map[string]any
	if err := yaml.Unmarshal(raw, &list); err != nil {
		return nil, fmt.Errorf("%s: a list of subscribers is expected: %w", path, err)
	}
	emitter, types := events.New(events.Options{Logger: log}), events.NewTypes(stdout)
	for i, entry := range list {
		s, o, err := types.Build(entry)
		if err == nil {
			_, err = emitter.Subscribe(s, o)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: subscriber %d: %w", path, i+1, err)
		}
	}
	return emitter, nil
}
