package registry

import (
	"fmt"
	"log/slog"
	"strings"

	"github.com/apbus/apbus/module"
	"github.com/apbus/apbus/schema"
)

// deprecation identifies a deprecation that somebody was told of.
type deprecation struct{ id, version, block string }

// Definition returns the descriptor under id and whether there is one. It must
// not be modified. Asking for the definition of a deprecated module is what warns
// of it: once for each registry, ID, version and content of the deprecation, even
// when the module was unregistered in between (decision D-89).
func (r *Registry) Definition(id string) (module.Descriptor, bool) {
	e, ok := r.Get(id)
	if !ok {
		return module.Descriptor{}, false
	}
	d := *e.Descriptor
	if block := d.Deprecation(); block != nil {
		told := deprecation{id, d.EffectiveVersion(), schema.ContentHash(block)}
		if _, before := r.warned.LoadOrStore(told, struct{}{}); !before {
			r.log.Warn("module is deprecated", moduleAttr(id),
				slog.String("version", told.version), slog.String("sunset_date", d.SunsetDate()))
		}
	}
	return d, true
}

// Describe explains a module in words, Markdown: its own when it is a
// module.Describer, otherwise made from its descriptor. An unknown module is
// MODULE_NOT_FOUND.
func (r *Registry) Describe(id string) (string, error) {
	e, ok := r.Get(id)
	if !ok {
		return "", NotFound(id)
	}
	d, ok := e.Module.(module.Describer)
	if !ok {
		return describe(e.Descriptor), nil
	}
	text := ""
	err := guard(module.CodeModuleExecuteError, id, "describing itself", func() error {
		text = d.Describe()
		return nil
	})
	return text, err
}

func describe(d *module.Descriptor) string {
	var b strings.Builder
	title := d.ID
	if d.Name != "" {
		title = d.Name + " (" + d.ID + ")"
	}
	fmt.Fprintf(&b, "# %s\n\nVersion %s\n", title, d.EffectiveVersion())
	for _, text := range []string{d.Description, d.Documentation} {
		if text != "" {
			fmt.Fprintf(&b, "\n%s\n", text)
		}
	}
	if len(d.Tags) > 0 {
		fmt.Fprintf(&b, "\nTags: %s\n", strings.Join(d.Tags, ", "))
	}
	for _, s := range []struct {
		name string
		doc  map[string]any
	}{{"Input", d.InputSchema}, {"Output", d.OutputSchema}} {
		doc, err := schema.CanonicalJSON(s.doc)
		if err == nil && len(s.doc) > 0 {
			fmt.Fprintf(&b, "\n%s schema:\n\n```json\n%s\n```\n", s.name, doc)
		}
	}
	return b.String()
}

// ExportSchema is the envelope in which a module's schemas are published, both
// strict when asked (see schema.Export); nil for an unknown module.
func (r *Registry) ExportSchema(id string, strict bool) map[string]any {
	e, ok := r.Get(id)
	if !ok {
		return nil
	}
	d := e.Descriptor
	return schema.Export(d.ID, d.Description, d.InputSchema, d.OutputSchema, strict)
}
