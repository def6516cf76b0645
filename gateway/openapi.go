package gateway

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/apbus/apbus/contextwire"
)

// openAPIDocument renders the route table as OpenAPI 3.1.
func openAPIDocument(table []*route, version string) ([]byte, error) {
	if version == "" {
		version = "dev"
	}
	schemas := componentSchemas()
	paths := map[string]any{}
	for _, rt := range table {
		for _, name := range rt.schemas() {
			if _, ok := schemas[name]; !ok {
				return nil, fmt.Errorf("openapi: %s names the schema %s, which is not there", rt.operation, name)
			}
		}
		item, _ := paths[rt.pattern].(map[string]any)
		if item == nil {
			item = map[string]any{}
			paths[rt.pattern] = item
		}
		item[strings.ToLower(rt.method)] = rt.openAPI()
	}
	return contextwire.EncodeCanonical(contextwire.JSON, map[string]any{
		"openapi":           "3.1.0",
		"jsonSchemaDialect": "https://json-schema.org/draft/2020-12/schema",
		"info": map[string]any{
			"title": "Apbus router", "version": version,
			"description": "Governed modules across processes: call, check, cancel, look.",
		},
		"paths": paths,
		"components": map[string]any{
			"schemas": schemas,
			"securitySchemes": map[string]any{"bearer": map[string]any{
				"type": "http", "scheme": "bearer",
				"description": "Needed when the router has a tokens file. Without one only callers on the same machine are admitted.",
			}},
		},
	})
}

func (rt *route) schemas() []string {
	var names []string
	if rt.body != "" {
		names = append(names, rt.body)
	}
	for _, a := range rt.answers {
		if a.schema != "" {
			names = append(names, a.schema)
		}
	}
	return names
}

func (rt *route) openAPI() map[string]any {
	op := map[string]any{"operationId": rt.operation, "summary": rt.summary, "parameters": rt.parameters()}
	if rt.scope != "" {
		op["security"] = []any{map[string]any{"bearer": []any{}}, map[string]any{}}
		op["x-apbus-scope"] = string(rt.scope)
	}
	if rt.body != "" {
		op["requestBody"] = map[string]any{
			"required": false, "content": jsonContent(rt.body), "description": "An empty body is an empty object.",
		}
	}
	answers := map[string]any{
		"default": map[string]any{"description": "A coded error.", "content": jsonContent("ErrorBody")},
	}
	for _, a := range rt.answers {
		answers[strconv.Itoa(a.status)] = map[string]any{"description": a.help, "content": contentOf(a.schema)}
	}
	op["responses"] = answers
	return op
}

func (rt *route) parameters() []any {
	list := []any{}
	add := func(in string, p param, required bool) {
		m := map[string]any{"name": p.name, "in": in, "required": required, "schema": map[string]any{"type": "string"}}
		if p.help != "" {
			m["description"] = p.help
		}
		list = append(list, m)
	}
	for segment := range strings.SplitSeq(rt.pattern, "/") {
		if name, ok := strings.CutPrefix(segment, "{"); ok {
			add("path", param{name: strings.TrimSuffix(name, "}")}, true)
		}
	}
	for _, p := range rt.query {
		add("query", p, false)
	}
	for _, p := range rt.headers {
		add("header", p, false)
	}
	return list
}

func contentOf(schema string) map[string]any {
	if schema == eventsSchema {
		return map[string]any{"text/event-stream": map[string]any{"schema": ref(schema)}}
	}
	if schema == metricsSchema {
		return map[string]any{"text/plain": map[string]any{"schema": ref(schema)}}
	}
	return jsonContent(schema)
}

func jsonContent(schema string) map[string]any {
	return map[string]any{"application/json": map[string]any{"schema": ref(schema)}}
}

func ref(schema string) map[string]any {
	return map[string]any{"$ref": "#/components/schemas/" + schema}
}
