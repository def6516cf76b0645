package gateway_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/gateway"
	"github.com/apbus/apbus/module"
	"github.com/apbus/apbus/schema"
)

func openAPI(t *testing.T) map[string]any {
	t.Helper()
	g := newGateway(t, func(o *gateway.Options) { o.Version = "1.2.3" })
	res := record(g, "GET", "/openapi.json", "")
	if res.status != 200 {
		t.Fatalf("got %d %s", res.status, res.body)
	}
	return res.fields(t)
}

func TestOpenAPIGolden(t *testing.T) {
	body, err := contextwire.EncodeCanonical(contextwire.JSON, openAPI(t))
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "openapi", string(body))
}

// The document and what is served are the same list.
func TestOpenAPIDescribesWhatIsServed(t *testing.T) {
	doc := openAPI(t)
	if doc["openapi"] != "3.1.0" || doc["info"].(map[string]any)["version"] != "1.2.3" {
		t.Errorf("head %v, %v", doc["openapi"], doc["info"])
	}
	documented := map[string]string{} // "METHOD /path" to its scope
	operations := map[string]bool{}
	for path, item := range doc["paths"].(map[string]any) {
		for method, op := range item.(map[string]any) {
			op := op.(map[string]any)
			scope, _ := op["x-apbus-scope"].(string)
			documented[strings.ToUpper(method)+" "+path] = scope
			id, _ := op["operationId"].(string)
			if id == "" || operations[id] {
				t.Errorf("%s %s: operationId %q is missing or not unique", method, path, id)
			}
			operations[id] = true
			checkParameters(t, path, op)
			if _, secured := op["security"]; secured != (scope != "") {
				t.Errorf("%s %s: security %v with scope %q", method, path, op["security"], scope)
			}
		}
	}
	served := map[string]string{}
	placeholder := strings.NewReplacer("/queues/a.b", "/queues/{module}", "/t1", "/{id}", "/h1", "/{hash}", "/s1", "/{name}", "a.b", "{id}", "n1", "{id}", "/0123456789abcdef", "/{call}")
	for _, r := range everyRoute() {
		path, _, _ := strings.Cut(r.path, "?")
		served[r.method+" "+placeholder.Replace(path)] = string(r.scope)
	}
	for route, scope := range served {
		if got, ok := documented[route]; !ok || got != scope {
			t.Errorf("%s is served for scope %q, documented %v for %q", route, scope, ok, got)
		}
	}
	for route := range documented {
		if _, ok := served[route]; !ok {
			t.Errorf("%s is documented; this test does not serve it", route)
		}
	}
}

// Path parameters are declared, exactly those of the pattern.
func checkParameters(t *testing.T, path string, op map[string]any) {
	t.Helper()
	var declared, want []string
	for _, p := range op["parameters"].([]any) {
		p := p.(map[string]any)
		if p["in"] == "path" {
			declared = append(declared, p["name"].(string))
			if p["required"] != true {
				t.Errorf("%s: path parameter %v is not required", path, p["name"])
			}
		}
	}
	for segment := range strings.SplitSeq(path, "/") {
		if strings.HasPrefix(segment, "{") {
			want = append(want, strings.Trim(segment, "{}"))
		}
	}
	if !slices.Equal(declared, want) {
		t.Errorf("%s: path parameters %v, want %v", path, declared, want)
	}
}

func TestOpenAPIReferencesResolve(t *testing.T) {
	doc := openAPI(t)
	schemas := doc["components"].(map[string]any)["schemas"].(map[string]any)
	used := map[string]bool{}
	var walk func(v any)
	walk = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			if target, ok := v["$ref"].(string); ok {
				name := strings.TrimPrefix(target, "#/components/schemas/")
				used[name] = true
				if schemas[name] == nil {
					t.Errorf("%s does not resolve", target)
				}
			}
			for _, item := range v {
				walk(item)
			}
		case []any:
			for _, item := range v {
				walk(item)
			}
		}
	}
	walk(doc)
	for name := range schemas {
		if !used[name] {
			t.Errorf("schema %s is not used", name)
		}
	}
}

// Real answers fit the schemas that the document gives them.
func TestAnswersFitTheDocument(t *testing.T) {
	doc := openAPI(t)
	schemas := doc["components"].(map[string]any)["schemas"].(map[string]any)
	states := governance(nil, gateway.NodeGovernance{Node: "n1", Boot: "b1", State: governed(nil)}, gateway.NodeGovernance{Node: "n2"})
	g := newGateway(t, withModules, knowing(rootCall, nestedCall), states, func(o *gateway.Options) {
		o.Fleet = gateway.FleetFuncs{NodesFunc: someNodes}
		o.Stats = gateway.StatsFunc(someStats)
		o.Invoker = failing(module.Errorf(module.CodeACLDenied, "no").WithDetail("rule", int64(1)))
	})
	tests := []struct{ method, path, schema string }{
		{"GET", "/v1/modules", "ModuleList"},
		{"GET", "/v1/governance", "GovernanceList"},
		{"GET", "/v1/modules/math.add", "Module"},
		{"GET", "/v1/modules/no.such", "ErrorBody"},
		{"POST", "/v1/modules/math.add/call", "ErrorBody"},
		{"POST", "/v1/modules/math.add/check", "PreflightResult"},
		{"GET", "/v1/calls", "CallList"},
		{"GET", "/v1/calls/" + nestedCall.Call, "Call"},
		{"GET", "/v1/nodes", "NodeList"},
		{"GET", "/v1/stats", "StatsList"},
		{"GET", "/healthz", "Status"},
		{"GET", "/readyz", "Status"},
	}
	for _, tt := range tests {
		t.Run(tt.method+" "+tt.path, func(t *testing.T) {
			whole := map[string]any{"$ref": "#/components/schemas/" + tt.schema, "components": map[string]any{"schemas": schemas}}
			compiled, err := schema.Compile(whole)
			if err != nil {
				t.Fatal(err)
			}
			res := record(g, tt.method, tt.path, "")
			if err := compiled.Validate(res.fields(t)); err != nil {
				t.Errorf("%d %s: %v", res.status, res.body, err)
			}
		})
	}
}
