package contextwire

import "github.com/apbus/apbus/module"

// readEnvelope reads the usual request body without building maps for the
// envelope and the context, which nobody would keep. ok is false when the body
// is anything but usual: an unknown or repeated key, a wrong type, a newer
// version. Then nothing has been decided and the general way says what is wrong.
func readEnvelope(body []byte, lim Limits, tp *module.TraceParent) (inputs map[string]any, c *module.Context, ok bool) {
	s := msgpackScan{body: body, lim: lim}
	if end := s.value(0, 0); end != len(body) || s.err != nil || s.cost > 8*len(body)+lim.MaxOverhead {
		return nil, nil, false
	}
	b := msgpackBuild{body: body, texts: newTexts(body)}
	var w module.ContextWire
	var hasContext bool
	ok = b.entries(func(key string) (bit uint, ok bool) {
		switch key {
		case "context":
			hasContext = true
			return 1, b.context(&w)
		case "inputs":
			inputs, ok = b.mapping()
			return 2, ok
		}
		return 0, false
	})
	if !ok || b.duplicate || !hasContext {
		return nil, nil, false
	}
	if inputs == nil {
		inputs = map[string]any{}
	}
	return inputs, contextFromWire(w, tp), true
}

// entries walks a map. read reads the value of key and names a bit for it; a bit
// twice or a refusal ends the walk.
func (b *msgpackBuild) entries(read func(key string) (bit uint, ok bool)) bool {
	item := msgpackHead(b.body, b.pos)
	if item.kind != mpkMap {
		return false
	}
	b.pos = item.next
	var seen uint
	for range item.n {
		key := msgpackHead(b.body, b.pos)
		b.pos = key.next + key.n
		bit, ok := read(b.texts.key(key.next, b.pos))
		if !ok || seen&bit != 0 {
			return false
		}
		seen |= bit
	}
	return true
}

func (b *msgpackBuild) context(w *module.ContextWire) bool {
	return b.entries(func(key string) (bit uint, ok bool) {
		switch key {
		case keyVersion:
			v, isInt := b.value().(int64)
			return 1, isInt && v >= 0 && v <= ContextVersion
		case keyTraceID:
			w.TraceID, ok = b.text(maxTraceID)
			return 2, ok
		case keyCallerID:
			w.CallerID, ok = b.text(module.MaxIDLength)
			return 4, ok
		case keyCallChain:
			w.CallChain, ok = b.strings(maxChain, module.MaxIDLength, 1)
			return 8, ok
		case keyIdentity:
			w.Identity, ok = b.identity()
			return 16, ok
		case keyData:
			if b.pos < len(b.body) && b.body[b.pos] == mpFixMap { // nothing is in it
				b.pos++
				return 32, true
			}
			w.Data, ok = b.mapping()
			w.Data = withoutPrivate(w.Data)
			return 32, ok
		}
		return 0, false
	})
}

// text reads a string of at most limit bytes; null is the empty one.
func (b *msgpackBuild) text(limit int) (string, bool) {
	item := msgpackHead(b.body, b.pos)
	switch item.kind {
	case mpkNil:
		b.pos = item.next
		return "", true
	case mpkString:
		b.pos = item.next + item.n
		return b.texts.slice(item.next, b.pos), item.n <= limit
	}
	return "", false
}

// strings reads a list of at most count strings, each of at least shortest and at
// most longest bytes; null is a nil one.
func (b *msgpackBuild) strings(count, longest, shortest int) ([]string, bool) {
	item := msgpackHead(b.body, b.pos)
	switch {
	case item.kind == mpkNil:
		b.pos = item.next
		return nil, true
	case item.kind != mpkList || item.n > count:
		return nil, false
	}
	b.pos = item.next
	if item.n == 0 {
		return []string{}, true
	}
	list := make([]string, item.n)
	for i := range list {
		text := msgpackHead(b.body, b.pos)
		if text.kind != mpkString || text.n < shortest || text.n > longest {
			return nil, false
		}
		b.pos = text.next + text.n
		list[i] = b.texts.slice(text.next, b.pos)
	}
	return list, true
}

func (b *msgpackBuild) identity() (*module.Identity, bool) {
	if msgpackHead(b.body, b.pos).kind == mpkNil {
		b.pos++
		return nil, true
	}
	var id, typ string
	var roles []string
	var attrs map[string]any
	var hasID bool
	ok := b.entries(func(key string) (bit uint, ok bool) {
		switch key {
		case "id":
			hasID = msgpackHead(b.body, b.pos).kind == mpkString
			id, ok = b.text(len(b.body))
			return 1, ok
		case "type":
			typ, ok = b.text(len(b.body))
			return 2, ok
		case "roles":
			roles, ok = b.strings(len(b.body), len(b.body), 0)
			return 4, ok
		case "attrs":
			attrs, ok = b.mapping()
			return 8, ok
		}
		return 0, false
	})
	if !ok || !hasID {
		return nil, false
	}
	return module.RestoreIdentity(id, typ, roles, attrs), true
}

// mapping reads a map; null is a nil one.
func (b *msgpackBuild) mapping() (map[string]any, bool) {
	switch msgpackHead(b.body, b.pos).kind {
	case mpkNil:
		b.pos++
		return nil, true
	case mpkMap:
		m, ok := b.value().(map[string]any)
		return m, ok
	}
	return nil, false
}
