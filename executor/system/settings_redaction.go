package system

import "github.com/apbus/apbus/schema"

// Keys of the rules that mask values (protocol §10.6.1).
const (
	keySensitive   = "obs.redaction.sensitive_keys"
	keyPatterns    = "obs.redaction.regex_patterns"
	keyReplacement = "obs.redaction.replacement"
)

// RedactOptions are the rules of obs.redaction as they are now, for
// [schema.NewRedactor]. A list of sensitive keys that is set replaces the default
// names.
func (s *Settings) RedactOptions() schema.RedactOptions {
	return schema.RedactOptions{
		SensitiveKeys: s.list(keySensitive), Patterns: s.list(keyPatterns), Replacement: s.text(keyReplacement),
	}
}

// list returns a list of strings, never nil.
func (s *Settings) list(key string) []string {
	v, _ := s.Get(key)
	items, _ := v.([]any)
	out := make([]string, 0, len(items))
	for _, item := range items {
		if text, ok := item.(string); ok {
			out = append(out, text)
		}
	}
	return out
}

// texts is the rule of such a list.
func texts() map[string]any {
	return map[string]any{"type": "array", "items": map[string]any{"type": "string"}}
}

func listOf(texts []string) []any {
	out := make([]any, len(texts))
	for i, t := range texts {
		out[i] = t
	}
	return out
}
