package contextwire

import (
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/apbus/apbus/module"
)

// scanEvidence reads what [EncodeEvidence] writes without building maps: a reader of
// a million records spends most of its time here. ok is false for everything that is
// not exactly that form, which [readEvidence] then looks at; it never accepts what
// that would refuse.
func scanEvidence(body []byte, e *Evidence, brief bool) (ok bool) {
	s := evidenceScan{body: body, text: string(body), e: e, brief: brief}
	return s.run()
}

type evidenceScan struct {
	body    []byte
	text    string // the same, for strings that share it
	pos     int
	e       *Evidence
	last    string // the key before, since keys are in order
	version bool   // v was there
	brief   bool   // inputs are passed over
}

func (s *evidenceScan) run() bool {
	if !s.take('{') {
		return false
	}
	for first := true; ; first = false {
		if s.take('}') {
			break
		}
		if !first && !s.take(',') {
			return false
		}
		key, ok := s.str()
		if !ok || key <= s.last || !s.take(':') {
			return false
		}
		if s.last = key; !s.field(key) {
			return false
		}
	}
	e := s.e
	return s.pos == len(s.body) && s.version && e.Type.Valid() && !e.At.IsZero() && (e.ModuleID != "" || e.Type == EvidenceNote)
}

func (s *evidenceScan) take(c byte) bool {
	if s.pos < len(s.body) && s.body[s.pos] == c {
		s.pos++
		return true
	}
	return false
}

// str reads a string; nearly all are without escapes.
func (s *evidenceScan) str() (string, bool) {
	if !s.take('"') {
		return "", false
	}
	start, wide := s.pos, false
	for ; s.pos < len(s.body); s.pos++ {
		switch c := s.body[s.pos]; {
		case c == '"':
			text := s.text[start:s.pos]
			s.pos++
			return text, len(text) <= maxStringLength && (!wide || utf8.ValidString(text))
		case c == '\\':
			return s.escaped(start - 1)
		case c < 0x20:
			return "", false
		case c >= utf8.RuneSelf:
			wide = true
		}
	}
	return "", false
}

// escaped reads a string that begins at start and holds escapes.
func (s *evidenceScan) escaped(start int) (string, bool) {
	for ; s.pos < len(s.body); s.pos++ {
		switch s.body[s.pos] {
		case '\\':
			s.pos++
		case '"':
			s.pos++
			v, err := Decode(JSON, s.body[start:s.pos], Limits{})
			text, ok := v.(string)
			return text, err == nil && ok && len(text) <= maxStringLength
		}
	}
	return "", false
}

func (s *evidenceScan) list() (texts []string, ok bool) {
	if !s.take('[') {
		return nil, false
	}
	for {
		text, ok := s.str()
		if !ok || len(texts) >= MaxEvidenceList {
			return nil, false
		}
		texts = append(texts, text)
		if s.take(']') {
			return texts, true
		}
		if !s.take(',') {
			return nil, false
		}
	}
}

// number reads digits, and what belongs to a float.
func (s *evidenceScan) number() string {
	start := s.pos
	for s.pos < len(s.body) {
		if c := s.body[s.pos]; (c < '0' || c > '9') && c != '.' {
			break
		}
		s.pos++
	}
	return s.text[start:s.pos]
}

func (s *evidenceScan) uint(most uint64) (uint64, bool) {
	text := s.number()
	n, err := strconv.ParseUint(text, 10, 64)
	return n, err == nil && n <= most && (len(text) == 1 || text[0] != '0')
}

func (s *evidenceScan) count(to *int) bool {
	n, ok := s.uint(1<<31 - 1)
	*to = int(n) //nolint:gosec // bounded
	return ok
}

func (s *evidenceScan) ms(to *time.Duration) bool {
	n, ok := s.uint(maxMillis)
	*to = time.Duration(n) * time.Millisecond //nolint:gosec // bounded
	return ok
}

// duration reads milliseconds with a fraction.
func (s *evidenceScan) duration() bool {
	text := s.number()
	whole, part, ok := strings.Cut(text, ".")
	if !ok || whole == "" || part == "" || (len(whole) > 1 && whole[0] == '0') {
		return false
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || f > maxMillis {
		return false
	}
	s.e.Duration = time.Duration(math.Round(f*1000)) * time.Microsecond
	return true
}

func (s *evidenceScan) textTo(to *string) (ok bool) {
	*to, ok = s.str()
	return ok
}

func (s *evidenceScan) isTrue(to *bool) bool {
	const word = "true"
	if end := s.pos + len(word); end <= len(s.body) && s.text[s.pos:end] == word {
		s.pos, *to = end, true
		return true
	}
	return false
}

// field reads the value of a key. A key that is not known here is left to the other
// reader.
func (s *evidenceScan) field(key string) (ok bool) {
	e := s.e
	switch key {
	case "attempt":
		return s.count(&e.Attempt)
	case "boot":
		return s.textTo(&e.Boot)
	case "budget_ms":
		return s.ms(&e.Budget)
	case "by":
		return s.textTo(&e.By)
	case "call":
		return s.textTo(&e.Call)
	case "call_chain":
		e.CallChain, ok = s.list()
	case "caller_id":
		return s.textTo(&e.CallerID)
	case "chunks":
		return s.count(&e.Chunks)
	case "code":
		return s.textTo((*string)(&e.Code))
	case "duration_ms":
		return s.duration()
	case "fields":
		e.Fields, ok = s.list()
	case "guidance":
		e.Guidance, ok = s.list()
	case "identity":
		return s.identity()
	case "input_bytes":
		return s.count(&e.InputBytes)
	case "inputs":
		return s.object()
	case "made_here":
		return s.isTrue(&e.MadeHere)
	case "message":
		return s.textTo(&e.Message)
	case "mode":
		return s.textTo(&e.Mode)
	case "module_id":
		return s.textTo(&e.ModuleID)
	case "n":
		e.N, ok = s.uint(1<<64 - 1)
	default:
		return s.field2(key)
	}
	return ok
}

func (s *evidenceScan) field2(key string) (ok bool) {
	e := s.e
	switch key {
	case "node":
		return s.textTo(&e.Node)
	case "ns":
		return s.textTo(&e.NS)
	case "origin":
		return s.textTo(&e.Origin)
	case "outcome":
		return s.textTo(&e.Outcome)
	case "parent":
		return s.textTo(&e.Parent)
	case "retries":
		return s.count(&e.Retries)
	case "retryable":
		yes := false
		if ok = s.isTrue(&yes); !ok {
			const word = "false"
			if end := s.pos + len(word); end <= len(s.body) && s.text[s.pos:end] == word {
				s.pos, ok = end, true
			}
		}
		e.Retryable = module.TriOf(yes)
	case "role":
		return s.textTo(&e.Role)
	case "root":
		return s.textTo(&e.Root)
	case "side":
		return s.textTo(&e.Side)
	case "task_attempt":
		return s.count(&e.TaskAttempt)
	case "task_id":
		return s.textTo(&e.TaskID)
	case "text":
		return s.textTo(&e.Text)
	case "time":
		return s.time()
	case "timeout_ms":
		return s.ms(&e.Timeout)
	case "trace_id":
		return s.textTo(&e.TraceID)
	case "type":
		return s.textTo((*string)(&e.Type))
	case "unexecuted":
		return s.isTrue(&e.Unexecuted)
	case "v":
		n, ok := s.uint(EvidenceVersion)
		s.version = n == EvidenceVersion
		return ok
	case "version":
		return s.textTo(&e.Version)
	}
	return ok
}

func (s *evidenceScan) identity() bool {
	if !s.take('{') {
		return false
	}
	for first := true; !s.take('}'); first = false {
		if !first && !s.take(',') {
			return false
		}
		key, ok := s.str()
		if !ok || !s.take(':') {
			return false
		}
		switch {
		case key == "id" && first:
			ok = s.textTo(&s.e.IdentityID)
		case key == "type" && s.e.IdentityType == "":
			ok = s.textTo(&s.e.IdentityType)
		default:
			ok = false
		}
		if !ok {
			return false
		}
	}
	return true
}

// time reads a time as it is written: 2006-01-02T15:04:05.000Z.
func (s *evidenceScan) time() bool {
	text, ok := s.str()
	if !ok || len(text) != len("2006-01-02T15:04:05.000Z") || text[len(text)-1] != 'Z' {
		return false
	}
	at, err := time.Parse(timeLayout, text)
	s.e.At = at.UTC()
	return err == nil && at.Year() >= 0
}

// object reads or passes over the inputs.
func (s *evidenceScan) object() bool {
	end := s.objectEnd()
	if end < 0 {
		return false
	}
	part := s.body[s.pos:end]
	s.pos = end
	if s.brief {
		return true
	}
	m, err := DecodeMap(JSON, part, Limits{MaxElements: MaxEvidence / 4, MaxOverhead: 1 << 20})
	if err != nil {
		return false
	}
	s.e.Inputs = m
	return true
}

// objectEnd is where the object at pos ends, -1 when it does not.
func (s *evidenceScan) objectEnd() int {
	depth, quoted := 0, false
	for i := s.pos; i < len(s.body); i++ {
		switch c := s.body[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			depth++
		case c == '}' || c == ']':
			if depth--; depth == 0 {
				return i + 1
			}
		}
		if depth == 0 {
			return -1 // no object begins here
		}
	}
	return -1
}
