package loop

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"
)

// versionFork finds modules of which several versions or schemas are hosted at once.
type versionFork struct{}

func (versionFork) Manifest() Manifest {
	return Manifest{
		ID: "exec.version_fork/1", Title: "Version forks", Cadence: "fast", DefaultOn: true,
		Description: "Nodes that host different versions or schemas of one module for longer than a deployment takes.",
		Types:       []Type{TypeModule},
		Params: []Param{
			durationParam("min_age_ms", 10*time.Minute, "for how long at least"),
		},
		Templates: map[string]string{
			"exec.version_fork": "Module {module} is hosted in {count} forms for {age}: {hosts}",
		},
	}
}

func (versionFork) Begin(in Input) Pass {
	return &forkPass{now: in.Now, age: in.Params.Duration("min_age_ms"), modules: newTable[forkCell](maxCells)}
}

// maxHosts bounds the hosts of one module that are looked at.
const maxHosts = 1024

type forkCell struct{ hosts []forkHost }

type forkHost struct {
	form, version, node string
	since               int64
	cited               sample
}

func compareHosts(a, b forkHost) int {
	return cmp.Or(cmp.Compare(a.form, b.form), cmp.Compare(a.since, b.since), cmp.Compare(a.node, b.node))
}

type forkPass struct {
	now     time.Time
	age     time.Duration
	modules table[forkCell]
}

func (p *forkPass) Since() time.Time { return p.now }

func (p *forkPass) Add(r *Record) {
	id, since := r.Text("module_id"), r.Int("since_ms")
	if id == "" || since <= 0 || r.Text("node") == "" {
		return
	}
	c := p.modules.at([]byte(id))
	if c == nil {
		return
	}
	version := copied(r.Text("version"))
	h := forkHost{version + "\x1f" + r.Text("digest"), version, copied(r.Text("node")), since, sample{}}
	h.cited.add(r)
	c.hosts = append(c.hosts, h)
	if len(c.hosts) >= 2*maxHosts {
		c.trim()
	}
}

func (c *forkCell) trim() {
	slices.SortFunc(c.hosts, compareHosts)
	c.hosts = c.hosts[:min(len(c.hosts), maxHosts)]
}

func (p *forkPass) Drafts(context.Context) ([]Draft, error) {
	var drafts []Draft
	for _, id := range p.modules.sorted() {
		c := p.modules.cells[id]
		c.trim()
		var began []int64 // when each form appeared
		var evidence sample
		byForm := map[string][]string{}
		for _, h := range c.hosts {
			if len(byForm[h.form]) == 0 {
				began = append(began, h.since)
			}
			byForm[h.form] = append(byForm[h.form], h.node)
			evidence.merge(&h.cited)
		}
		if len(began) < 2 {
			continue
		}
		slices.Sort(began)
		age := p.now.Sub(time.UnixMilli(began[1]))
		if age <= p.age {
			continue
		}
		drafts = append(drafts, Draft{
			Target: "host:module/" + targetName(id), Action: ActionFlag, Severity: SeverityHigh,
			Summary: Summary{"exec.version_fork", map[string]any{
				"module": shown(id), "count": int64(len(began)), "age": age.Round(time.Second).String(), "hosts": listed(formsOf(c.hosts, byForm)),
			}},
			Evidence: evidence.hashes(), Confidence: 0.9, Importance: 0.6,
		})
	}
	return ordered(drafts), nil
}

// formsOf names each form with its nodes. Forms of one version differ in their
// schemas.
func formsOf(hosts []forkHost, byForm map[string][]string) []string {
	var out []string
	for i, h := range hosts {
		if i > 0 && hosts[i-1].form == h.form {
			continue
		}
		nodes := slices.Compact(slices.Sorted(slices.Values(byForm[h.form])))
		out = append(out, h.version+" on "+strings.Join(nodes[:min(len(nodes), 5)], " "))
	}
	return out
}
