package loop

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"

	"github.com/apbus/apbus/module"
	"github.com/apbus/apbus/schema"
)

// Item is one piece of knowledge. It does not change; whether it is live does.
type Item struct {
	// Hash is 64 hex digits, made of the recommendation, the attempt and the
	// operation it came from, so that doing an operation again makes the same item.
	Hash      string
	Type      ItemType
	Namespace string
	// Name is the subject of a fact and the name of everything else.
	Name   string
	Fields map[string]any
	// Rec is the recommendation whose apply made it.
	Rec         string
	AppliedAtMS int64
	Live        bool
	// Retracted is true for what was rolled back. By is, for an item that is not live
	// and not retracted, the hash of the version that took its place, and ByRec the
	// recommendation of that; Same tells that the two hold the same.
	Retracted bool
	By, ByRec string
	Same      bool
}

// Text is the text field under key, "" when there is none.
func (i *Item) Text(key string) string { s, _ := i.Fields[key].(string); return s }

// IsLesson reports whether the item is a lesson.
func (i *Item) IsLesson() bool { return i.Type == ItemFact && i.Text("relation") == RelationLesson }

// slotDoc is the stored form: all versions under one name, oldest first. What is
// live is the newest version that was not retracted, unless that one only hides.
// Each change is one write of one document, and retracting the newest version
// makes the one below live again, whatever happened in between.
type slotDoc struct {
	V         int       `json:"v"`
	Type      ItemType  `json:"type"`
	Namespace string    `json:"namespace,omitempty"`
	Name      string    `json:"name"`
	Versions  []version `json:"versions"`
}

type version struct {
	Hash string `json:"hash"`
	// Namespace and Name are given where they are not those of the document, in which
	// versions meet that would be the same module.
	Namespace string         `json:"namespace,omitempty"`
	Name      string         `json:"name,omitempty"`
	Rec       string         `json:"rec"`
	AtMS      int64          `json:"at_ms"`
	Fields    map[string]any `json:"fields,omitempty"`
	Hides     bool           `json:"hides,omitempty"`
	Retracted bool           `json:"retracted,omitempty"`
}

// maxVersions bounds a document, and so does [MaxStoreValue]; what is missed least is
// dropped, which limits how far back rollbacks can reach.
const maxVersions = 32

// bound drops versions beyond what is kept.
func (d *slotDoc) bound() {
	for len(d.Versions) > maxVersions && d.shed() {
	}
}

// shed drops the version that is missed least: the oldest that was taken back, else the
// oldest of those that stand. The newest one, what is live and what would be live
// without it are never dropped; false means that there is nothing else.
func (d *slotDoc) shed() bool {
	older := d.Versions[:len(d.Versions)-1]
	i := slices.IndexFunc(older, func(v version) bool { return v.Retracted })
	if i < 0 {
		standing := 0
		for _, v := range d.Versions {
			if !v.Retracted {
				standing++
			}
		}
		if i = 0; standing <= 2 {
			return false
		}
	}
	d.Versions = slices.Delete(d.Versions, i, i+1)
	return true
}

// encode renders the document, without what is missed least where all is too much to
// be stored.
func (d *slotDoc) encode() ([]byte, error) {
	for {
		raw, err := encodeStored(d)
		if err != nil || len(raw) <= MaxStoreValue {
			return raw, err
		}
		if !d.shed() {
			return nil, module.Errorf(module.CodeLoopInvalid, "%s %.80q is too large to be stored", d.Type, d.Name)
		}
	}
}

// top is the index of the version that decides, -1 when there is none.
func (d *slotDoc) top() int {
	for i := len(d.Versions) - 1; i >= 0; i-- {
		if !d.Versions[i].Retracted {
			return i
		}
	}
	return -1
}

// live is the hash of the live version, "" when there is none.
func (d *slotDoc) live() string {
	if i := d.top(); i >= 0 && !d.Versions[i].Hides {
		return d.Versions[i].Hash
	}
	return ""
}

func (d *slotDoc) find(hash string) int {
	return slices.IndexFunc(d.Versions, func(v version) bool { return v.Hash == hash })
}

func (d *slotDoc) items() []*Item {
	live, top := d.live(), d.top()
	var items []*Item
	for _, v := range d.Versions {
		if v.Hides {
			continue
		}
		i := &Item{
			Hash: v.Hash, Type: d.Type, Namespace: d.Namespace, Name: d.Name, Fields: v.Fields,
			Rec: v.Rec, AppliedAtMS: v.AtMS, Live: v.Hash == live, Retracted: v.Retracted,
		}
		if v.Name != "" {
			i.Namespace, i.Name = v.Namespace, v.Name
		}
		if !i.Live && top >= 0 {
			above := d.Versions[top]
			i.By, i.ByRec = above.Hash, above.Rec
			i.Same = !above.Hides && schema.ContentHash(above.Fields) == schema.ContentHash(v.Fields)
		}
		if !i.Live && i.By == "" {
			i.By = i.Hash // taken back, and nothing is in its place
		}
		items = append(items, i)
	}
	return items
}

// Knowledge reads, and for the engine writes, the items of a store.
type Knowledge struct{ store Store }

// NewKnowledge makes a view of a store's knowledge.
func NewKnowledge(s Store) *Knowledge { return &Knowledge{store: s} }

// Items returns the items of the store, live ones only or all, in the order of
// type, namespace, name, time and hash. Documents that cannot be read are left out
// and counted in bad.
func (k *Knowledge) Items(ctx context.Context, liveOnly bool) (items []*Item, bad int, err error) {
	for e, err := range k.store.List(ctx, BucketKnowledge) {
		if err != nil {
			return nil, 0, storeError("reading knowledge", err)
		}
		doc, err := readSlot(e.Value)
		if err != nil {
			bad++
			continue
		}
		for _, i := range doc.items() {
			if i.Live || !liveOnly {
				items = append(items, i)
			}
		}
	}
	slices.SortFunc(items, func(a, b *Item) int {
		return cmp.Or(cmp.Compare(a.Type, b.Type), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name),
			cmp.Compare(a.AppliedAtMS, b.AppliedAtMS), cmp.Compare(a.Hash, b.Hash))
	})
	return items, bad, nil
}

// Named returns the live item under a name, nil when there is none.
func (k *Knowledge) Named(ctx context.Context, t ItemType, namespace, name string) (*Item, error) {
	if !t.named() {
		return nil, module.Errorf(module.CodeLoopInvalid, "items of type %s have no name of their own", t)
	}
	doc, _, err := k.slot(ctx, slotKey(t, namespace, name, nil))
	if err != nil || doc == nil {
		return nil, err
	}
	for _, i := range doc.items() {
		if i.Live {
			return i, nil
		}
	}
	return nil, nil
}

func (k *Knowledge) slot(ctx context.Context, key string) (*slotDoc, uint64, error) {
	e, err := k.store.Get(ctx, BucketKnowledge, key)
	if err != nil {
		return nil, 0, storeError("reading knowledge", err)
	}
	if e.Rev == 0 {
		return nil, 0, nil
	}
	doc, err := readSlot(e.Value)
	return doc, e.Rev, err
}

func readSlot(raw []byte) (*slotDoc, error) {
	doc := new(slotDoc)
	if err := decodeStored(slotLayout, raw, doc); err != nil {
		return nil, module.Errorf(module.CodeLoopStore, "knowledge cannot be read: %w", err)
	}
	if doc.V != 1 {
		return nil, module.Errorf(module.CodeLoopStore, "knowledge is of another version")
	}
	return doc, nil
}

// errGone says that an item was taken back before the operation that makes it came
// to its end.
var errGone = errors.New("the item was taken back meanwhile")

// stale is the refusal of an operation whose premise no longer holds.
func stale(o Op, why string) error {
	return module.Errorf(module.CodeLoopStale, "%s of %s %.80q: %s", o.Op, o.Type, o.Name, why)
}

// itemHash is the identity of what operation n of an attempt makes.
func itemHash(rec string, attempt, n int, o Op) string {
	return schema.ContentHash([]any{rec, strconv.Itoa(attempt), strconv.Itoa(n), string(o.Op), string(o.Type), o.Namespace, o.Name, o.Fields})
}

// premise checks, without writing, that the operation could be done now.
func (k *Knowledge) premise(ctx context.Context, o Op) error {
	doc, _, err := k.slot(ctx, o.slot())
	if err != nil {
		return err
	}
	return o.fits(doc)
}

// fits checks an operation against the document it works on, nil for none.
func (o Op) fits(doc *slotDoc) error {
	live := ""
	if doc != nil {
		live = doc.live()
	}
	switch o.Op {
	case OpAdd:
		if o.Type.named() && live != "" {
			return stale(o, "there is one of this name now")
		}
	default:
		if live != o.Replaces {
			return stale(o, "what it replaces is not live any more")
		}
	}
	return nil
}

// do performs an operation; doing it again changes nothing. hash is that of the
// version it makes.
func (k *Knowledge) do(ctx context.Context, o Op, hash, rec string, atMS int64) error {
	return k.change(ctx, o.slot(), func(doc *slotDoc) (*slotDoc, error) {
		if doc != nil {
			if i := doc.find(hash); i >= 0 {
				if doc.Versions[i].Retracted {
					return nil, errGone
				}
				return nil, nil
			}
		}
		if err := o.fits(doc); err != nil {
			return nil, err
		}
		if doc == nil {
			doc = &slotDoc{V: 1, Type: o.Type, Namespace: o.Namespace, Name: o.Name}
		}
		v := version{Hash: hash, Rec: rec, AtMS: atMS}
		if o.Namespace != doc.Namespace || o.Name != doc.Name {
			v.Namespace, v.Name = o.Namespace, o.Name
		}
		switch o.Op {
		case OpAdd, OpSupersede:
			v.Fields = o.Fields
		case OpHide:
			v.Hides = true
		case OpForget:
			// What is forgotten loses its content, and so does everything below it.
			doc.Versions, v.Hides = nil, true
		}
		doc.Versions = append(doc.Versions, v)
		doc.bound()
		return doc, nil
	})
}

// retract takes back the version that an operation made; taking it back again changes
// nothing. Taken back before it was made it leaves a mark, so that a process that is
// late cannot make it any more.
func (k *Knowledge) retract(ctx context.Context, o Op, hash, rec string, atMS int64) error {
	return k.change(ctx, o.slot(), func(doc *slotDoc) (*slotDoc, error) {
		if doc == nil {
			doc = &slotDoc{V: 1, Type: o.Type, Namespace: o.Namespace, Name: o.Name}
		}
		i := doc.find(hash)
		switch {
		case i < 0:
			doc.Versions = append(doc.Versions, version{Hash: hash, Rec: rec, AtMS: atMS, Hides: true, Retracted: true})
			doc.bound()
		case doc.Versions[i].Retracted:
			return nil, nil
		default:
			doc.Versions[i].Retracted = true
		}
		return doc, nil
	})
}

// change is a compare-and-set loop on one document; f returns nil for no change.
func (k *Knowledge) change(ctx context.Context, key string, f func(*slotDoc) (*slotDoc, error)) error {
	for {
		doc, rev, err := k.slot(ctx, key)
		if err != nil {
			return err
		}
		next, err := f(doc)
		if err != nil || next == nil {
			return err
		}
		raw, err := next.encode()
		if err != nil {
			return err
		}
		switch _, err := k.store.Put(ctx, BucketKnowledge, key, raw, rev); {
		case err == nil:
			return nil
		case !errors.Is(err, ErrConflict):
			return storeError("writing knowledge", err)
		}
	}
}

// storeError marks a failure of the store.
func storeError(doing string, err error) error {
	return module.Errorf(module.CodeLoopStore, "%s: %w", doing, err)
}
