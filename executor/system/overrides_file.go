package system

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/apbus/apbus/module"
)

// maxOverrides bounds the file, in bytes.
const maxOverrides = 1 << 20

// FileOverrides is an [OverridesStore] in a YAML file, which only its owner may
// read. The file appears with the first save, and each save replaces it as a
// whole, so that a crash leaves the old or the new one. Two processes must not
// share it.
type FileOverrides struct{ path string }

var _ OverridesStore = (*FileOverrides)(nil)

// NewFileOverrides keeps overrides in the file at path.
func NewFileOverrides(path string) *FileOverrides { return &FileOverrides{path} }

// Load reads the file; one that is missing or empty holds nothing. The error never
// quotes the content.
func (f *FileOverrides) Load(context.Context) (map[string]any, error) {
	info, err := os.Stat(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return map[string]any{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read overrides: %w", err)
	}
	if info.Size() > maxOverrides {
		return nil, module.Errorf(module.CodeConfigInvalid, "overrides file has %d bytes, limit %d", info.Size(), maxOverrides)
	}
	content, err := os.ReadFile(f.path)
	if err != nil {
		return nil, fmt.Errorf("read overrides: %w", err)
	}
	return parseOverrides(content)
}

func parseOverrides(content []byte) (map[string]any, error) {
	var doc any
	if err := yaml.Unmarshal(content, &doc); err != nil {
		return nil, module.Errorf(module.CodeConfigInvalid, "overrides file is no YAML document")
	}
	if doc == nil {
		return map[string]any{}, nil
	}
	m, ok := doc.(map[string]any)
	if !ok {
		return nil, module.Errorf(module.CodeConfigInvalid, "overrides file holds no mapping")
	}
	normal, err := module.NormalizeMap(m)
	if err != nil {
		return nil, module.Errorf(module.CodeConfigInvalid, "overrides file holds values without a JSON form")
	}
	return normal, nil
}

// Save writes the file.
func (f *FileOverrides) Save(_ context.Context, overrides map[string]any) error {
	content, err := yaml.Marshal(exact(overrides))
	if err != nil {
		return fmt.Errorf("write overrides: %w", err)
	}
	// CreateTemp gives mode 0600.
	tmp, err := os.CreateTemp(filepath.Dir(f.path), filepath.Base(f.path)+".*")
	if err != nil {
		return fmt.Errorf("write overrides: %w", err)
	}
	_, err = tmp.Write(content)
	err = errors.Join(err, tmp.Sync(), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), f.path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("write overrides: %w", err), os.Remove(tmp.Name()))
	}
	return nil
}

// exact writes floats so that they are read as floats again, 1.0 and not 1.
func exact(v any) any {
	switch x := v.(type) {
	case map[string]any:
		out := make(map[string]any, len(x))
		for k, e := range x {
			out[k] = exact(e)
		}
		return out
	case []any:
		out := make([]any, len(x))
		for i, e := range x {
			out[i] = exact(e)
		}
		return out
	case float64:
		digits := strconv.FormatFloat(x, 'g', -1, 64)
		if !strings.ContainsAny(digits, ".e") {
			digits += ".0"
		}
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!float", Value: digits}
	}
	return v
}
