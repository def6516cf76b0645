package gateway

import (
	"net/http"
	"slices"
	"strings"

	"github.com/apbus/apbus/module"
)

// listModules serves GET /v1/modules. Modules that are not discoverable are
// left out; they are still found by their ID.
func (g *Gateway) listModules(x *exchange) error {
	q := x.r.URL.Query()
	f := moduleFilter{prefix: q.Get("prefix"), tags: q["tag"], text: strings.ToLower(q.Get("q"))}
	list := []any{}
	for _, m := range g.catalog.Modules() {
		if f.admits(&m.Descriptor) {
			list = append(list, moduleView(&m))
		}
	}
	return x.json(http.StatusOK, map[string]any{"modules": list})
}

// moduleFilter narrows a list of modules; empty parts admit everything.
type moduleFilter struct {
	prefix string
	tags   []string // all of them
	text   string   // in lower case
}

func (f moduleFilter) admits(d *module.Descriptor) bool {
	if d.Annotations.Hidden || !strings.HasPrefix(d.ID, f.prefix) {
		return false
	}
	for _, tag := range f.tags {
		if tag != "" && !slices.Contains(d.Tags, tag) {
			return false
		}
	}
	if f.text == "" {
		return true
	}
	for _, s := range append([]string{d.ID, d.Name, d.Description}, d.Tags...) {
		if strings.Contains(strings.ToLower(s), f.text) {
			return true
		}
	}
	return false
}

// showModule serves GET /v1/modules/{id}.
func (g *Gateway) showModule(x *exchange) error {
	id := x.r.PathValue("id")
	if err := module.ValidateID(id); err != nil {
		return err
	}
	m, ok := g.catalog.Module(id)
	if !ok {
		return module.Errorf(module.CodeModuleNotFound, "no node hosts module %s", id)
	}
	view := moduleView(&m)
	view["guidance"] = g.guidanceOf(x, id)
	return x.json(http.StatusOK, view)
}

// moduleView is the descriptor with where the module runs and what was learned
// about it.
func moduleView(m *Module) map[string]any {
	hosts := make([]any, len(m.Hosts))
	for i, h := range m.Hosts {
		hosts[i] = map[string]any{"node": h.Node, "boot": h.Boot, "version": h.Version, "draining": h.Draining}
	}
	view := m.Descriptor.Map()
	view["hash"], view["hosts"], view["guidance"] = m.Hash, hosts, []any{}
	return view
}
