package contextwire

import "strings"

// ContentType names a codec.
type ContentType string

// The two codecs: msgpack between our own processes, JSON for everybody.
const (
	MsgPack ContentType = "application/msgpack"
	JSON    ContentType = "application/json"
)

// ParseContentType reads a content-type header. Parameters such as charset are
// tolerated, case does not matter. ok is false for any other type.
func ParseContentType(s string) (ct ContentType, ok bool) {
	s, _, _ = strings.Cut(s, ";")
	s = strings.TrimSpace(s)
	switch {
	case strings.EqualFold(s, string(MsgPack)):
		return MsgPack, true
	case strings.EqualFold(s, string(JSON)):
		return JSON, true
	}
	return "", false
}

// parseAccept reads an accept header: the first type of the list that we speak.
// A wildcard gives fallback.
func parseAccept(s string, fallback ContentType) (ContentType, bool) {
	for item := range strings.SplitSeq(s, ",") {
		if ct, ok := ParseContentType(item); ok {
			return ct, true
		}
		name, _, _ := strings.Cut(item, ";")
		switch strings.TrimSpace(name) {
		case "*/*", "application/*":
			return fallback, true
		}
	}
	return "", false
}
