package plan

import "slices"

// graph is a plan as numbers: edges and nodes by position.
type graph struct {
	p        *Plan
	src, dst []int
	out, in  [][]int
	// component numbers the strongly connected components, in an order in which
	// every edge between two of them leads to a higher number.
	component []int
	members   [][]int
	// back marks the edges that lead back in the depth-first walk from node 0.
	back []bool
}

func newGraph(p *Plan) *graph {
	n := len(p.Nodes)
	g := &graph{
		p: p, src: make([]int, len(p.Edges)), dst: make([]int, len(p.Edges)),
		out: make([][]int, n), in: make([][]int, n), back: make([]bool, len(p.Edges)),
	}
	index := make(map[string]int, n)
	for i, node := range p.Nodes {
		index[node.ID] = i
	}
	for i, e := range p.Edges {
		g.src[i], g.dst[i] = index[e.Src], index[e.Dst]
		g.out[g.src[i]] = append(g.out[g.src[i]], i)
		g.in[g.dst[i]] = append(g.in[g.dst[i]], i)
	}
	g.walkBack()
	g.condense()
	return g
}

// walkBack finds the back edges. Plans have at most [MaxNodes] nodes, so that the
// recursion is shallow.
func (g *graph) walkBack() {
	const (
		fresh = iota
		open
		done
	)
	state := make([]int, len(g.p.Nodes))
	var visit func(int)
	visit = func(v int) {
		state[v] = open
		for _, e := range g.out[v] {
			switch state[g.dst[e]] {
			case fresh:
				visit(g.dst[e])
			case open:
				g.back[e] = true
			}
		}
		state[v] = done
	}
	visit(0)
}

// condense finds the strongly connected components (Tarjan), in reverse
// topological order, and turns that order round.
func (g *graph) condense() {
	n := len(g.p.Nodes)
	number, low := make([]int, n), make([]int, n)
	onStack := make([]bool, n)
	var stack []int
	var found [][]int
	next := 1
	var visit func(int)
	visit = func(v int) {
		number[v], low[v] = next, next
		next++
		stack = append(stack, v)
		onStack[v] = true
		for _, e := range g.out[v] {
			w := g.dst[e]
			if number[w] == 0 {
				visit(w)
				low[v] = min(low[v], low[w])
			} else if onStack[w] {
				low[v] = min(low[v], number[w])
			}
		}
		if low[v] != number[v] {
			return
		}
		var members []int
		for {
			w := stack[len(stack)-1]
			stack = stack[:len(stack)-1]
			onStack[w] = false
			members = append(members, w)
			if w == v {
				break
			}
		}
		found = append(found, members)
	}
	for v := range n {
		if number[v] == 0 {
			visit(v)
		}
	}
	g.component = make([]int, n)
	g.members = make([][]int, len(found))
	for i := range found {
		c := len(found) - 1 - i
		g.members[c] = found[i]
		for _, v := range found[i] {
			g.component[v] = c
		}
	}
}

// inner reports whether an edge stays inside one component.
func (g *graph) inner(e int) bool { return g.component[g.src[e]] == g.component[g.dst[e]] }

// before lists the components with an edge into c.
func (g *graph) before(c int) []int {
	var list []int
	for _, v := range g.members[c] {
		for _, e := range g.in[v] {
			if from := g.component[g.src[e]]; from != c && !slices.Contains(list, from) {
				list = append(list, from)
			}
		}
	}
	return list
}

func (g *graph) check() error {
	reached := make([]bool, len(g.p.Nodes))
	todo := []int{0}
	reached[0] = true
	for len(todo) > 0 {
		v := todo[0]
		todo = todo[1:]
		for _, e := range g.out[v] {
			if w := g.dst[e]; !reached[w] {
				reached[w] = true
				todo = append(todo, w)
			}
		}
	}
	for i, ok := range reached {
		if !ok {
			return invalid("node %.64q cannot be reached", g.p.Nodes[i].ID)
		}
	}
	return g.checkBounds()
}

// checkBounds looks for a cycle of edges without max_cycles: what remains when
// all others are taken away must have an order.
func (g *graph) checkBounds() error {
	waiting := make([]int, len(g.p.Nodes))
	free := func(e int) bool { return g.p.Edges[e].MaxCycles == nil }
	for e := range g.p.Edges {
		if free(e) {
			waiting[g.dst[e]]++
		}
	}
	var todo []int
	for v, n := range waiting {
		if n == 0 {
			todo = append(todo, v)
		}
	}
	ordered := 0
	for len(todo) > 0 {
		v := todo[0]
		todo = todo[1:]
		ordered++
		for _, e := range g.out[v] {
			if !free(e) {
				continue
			}
			if w := g.dst[e]; waiting[w] > 0 {
				if waiting[w]--; waiting[w] == 0 {
					todo = append(todo, w)
				}
			}
		}
	}
	if ordered < len(g.p.Nodes) {
		return invalid("a cycle has no edge with max_cycles")
	}
	return nil
}
