package bus

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/apbus/apbus/contextwire"
)

// storedRecord is a node's record as it lies in the catalogue.
type storedRecord struct {
	contextwire.NodeRecord
	// stored is when the server took it, by the server's clock.
	stored time.Time
}

func (r *storedRecord) name() string { return fmt.Sprintf("node %s (boot %s)", r.Node, r.Boot) }

// maxSkew is how far clocks may be apart. Time limits of calls do not mind, since
// they cross as durations; evidence, approvals, schedules and passports do.
const maxSkew = 2 * time.Second

// readRecords reads the catalogue, once.
func (d *doctor) readRecords(ctx context.Context) error {
	if d.records != nil || d.noRecord != "" {
		return nil
	}
	if d.js == nil {
		d.noRecord = noJetStream
		return nil
	}
	ctx, stop := d.within(ctx)
	defer stop()
	kv, err := d.js.KeyValue(ctx, nodesBucket)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		d.noRecord = "there is no catalogue yet; the first node or router makes it"
		return nil
	}
	if err != nil {
		return fmt.Errorf("open the catalogue: %w", err)
	}
	w, err := kv.Watch(ctx, d.subjects.ns+".>", jetstream.IgnoreDeletes())
	if err != nil {
		return fmt.Errorf("list the nodes: %w", err)
	}
	defer func() { _ = w.Stop() }() // the connection closes soon
	d.records = []storedRecord{}
	for {
		select {
		case entry := <-w.Updates():
			if entry == nil {
				return nil
			}
			if r, err := decodeRecord(entry.Value()); err == nil {
				d.records = append(d.records, storedRecord{r, entry.Created()})
			}
		case <-ctx.Done():
			return fmt.Errorf("list the nodes: %w", context.Cause(ctx))
		}
	}
}

// live reads the catalogue for a check that is about nodes.
func (d *doctor) live(ctx context.Context) ([]storedRecord, error) {
	if err := d.readRecords(ctx); err != nil {
		return nil, err
	}
	if d.noRecord != "" {
		return nil, errors.New(d.noRecord)
	}
	return d.records, nil
}

// catalogue compares what is listed with who answers.
func (d *doctor) catalogue(ctx context.Context, c *HealthCheck) error {
	records, err := d.live(ctx)
	if err != nil {
		return err
	}
	asked, stop := d.within(ctx)
	defer stop()
	kv, err := d.js.KeyValue(asked, nodesBucket)
	if err != nil {
		return fmt.Errorf("open the catalogue: %w", err)
	}
	status, err := kv.Status(asked)
	if err != nil {
		return fmt.Errorf("look at the catalogue: %w", err)
	}
	if ttl := status.TTL(); ttl <= 0 || ttl > 2*recordTTL {
		c.add(SeverityWarning, "bucket "+nodesBucket, fmt.Sprintf("its entries are kept for %s instead of %s, so nodes that are gone stay listed", age(ttl), recordTTL),
			fmt.Sprintf("nats stream edit KV_%s --max-age %s", nodesBucket, recordTTL))
	}
	alive := map[string][]string{} // boots by node
	for _, r := range records {
		switch how, err := d.ping(ctx, r); {
		case err != nil:
			return err
		case how == "":
			alive[r.Node] = append(alive[r.Node], r.Boot)
		default:
			c.add(SeverityWarning, r.name(), fmt.Sprintf("it is listed, and %s; its record is %s old", how, age(time.Since(r.stored))),
				fmt.Sprintf("nothing, when it has just ended: the entry goes within %s. Else end the process, and see that the bucket %s has that TTL", recordTTL, nodesBucket))
		}
	}
	for _, node := range slices.Sorted(maps.Keys(alive)) {
		if boots := alive[node]; len(boots) > 1 {
			slices.Sort(boots)
			c.add(SeverityError, "node "+node, fmt.Sprintf("%d processes have this ID (boots %s): a drain or a call that names it reaches any of them", len(boots), strings.Join(boots, ", ")),
				"give each process an --id of its own")
		}
	}
	return nil
}

func age(d time.Duration) string {
	if d <= 0 {
		return "ever"
	}
	return d.Round(100 * time.Millisecond).String()
}

// ping asks a process whether it is there; "" means that it is.
func (d *doctor) ping(ctx context.Context, r storedRecord) (how string, err error) {
	ctx, stop := context.WithTimeoutCause(ctx, time.Second, errors.New("no pong"))
	defer stop()
	_, err = d.nc.RequestMsgWithContext(ctx, &nats.Msg{Subject: d.subjects.node(r.Node, r.Boot, verbStats)})
	switch {
	case err == nil:
		return "", nil
	case errors.Is(err, nats.ErrNoResponders):
		return "the process is gone", nil
	case ctx.Err() != nil:
		return "the process does not answer", nil
	}
	return "", err
}

// clocks compares the clocks of the nodes and our own with the server's.
func (d *doctor) clocks(ctx context.Context, c *HealthCheck) error {
	records, err := d.live(ctx)
	if err != nil {
		return err
	}
	const mend = "let the machine keep its time (chrony, systemd-timesyncd)"
	judge := func(who string, skew time.Duration) {
		if skew.Abs() < maxSkew {
			return
		}
		way := "ahead of"
		if skew < 0 {
			way = "behind"
		}
		c.add(SeverityWarning, who, fmt.Sprintf("its clock is %s %s that of the NATS server: times of evidence, approvals and schedules are wrong",
			skew.Abs().Round(100*time.Millisecond), way), mend)
	}
	asked, stop := d.within(ctx)
	defer stop()
	before := time.Now()
	stream, err := d.js.Stream(asked, "KV_"+nodesBucket)
	if err != nil {
		return fmt.Errorf("ask for the server's time: %w", err)
	}
	ours := before.Add(time.Since(before) / 2)
	if at := stream.CachedInfo().TimeStamp; !at.IsZero() {
		judge("this process", ours.Sub(at))
	}
	for _, r := range records {
		if !r.At.IsZero() {
			judge(r.name(), r.At.Sub(r.stored))
		}
	}
	return nil
}

// versions compares what the nodes run.
func (d *doctor) versions(ctx context.Context, c *HealthCheck) error {
	records, err := d.live(ctx)
	if err != nil {
		return err
	}
	programs := map[string][]string{}
	modules := map[string]map[string][]string{} // nodes by module and version, and hash
	for _, r := range records {
		if r.Protocol != contextwire.ProtocolVersion {
			c.add(SeverityError, r.name(), fmt.Sprintf("it speaks version %d of the protocol, this program version %d: they do not see each other", r.Protocol, contextwire.ProtocolVersion),
				"run one version of the programs")
		}
		programs[r.Version] = append(programs[r.Version], r.Node)
		for _, m := range r.Modules {
			if r.NamedOnly {
				break // it may host something else under the same ID
			}
			at := m.ID + " " + m.Version
			if modules[at] == nil {
				modules[at] = map[string][]string{}
			}
			modules[at][m.Hash] = append(modules[at][m.Hash], r.Node)
		}
	}
	if len(programs) > 1 {
		c.add(SeverityWarning, "nodes", "they run different versions of the program: "+spread(programs), "bring all to one version; during a rolling update this passes")
	}
	for _, at := range slices.Sorted(maps.Keys(modules)) {
		if hosts := modules[at]; len(hosts) > 1 {
			c.add(SeverityWarning, "module "+strings.TrimSpace(at), "its hosts disagree on what this version is: "+spread(hosts),
				"give the changed module another version, or deploy one of the two everywhere")
		}
	}
	return nil
}

// payloads compares how large a message may be.
func (d *doctor) payloads(ctx context.Context, c *HealthCheck) error {
	records, err := d.live(ctx)
	if err != nil {
		return err
	}
	sizes := map[int64][]string{d.nc.MaxPayload(): {"this connection"}}
	for _, r := range records {
		if r.MaxPayload > 0 {
			sizes[r.MaxPayload] = append(sizes[r.MaxPayload], r.Node)
		}
	}
	if len(sizes) < 2 {
		return nil
	}
	named := map[string][]string{}
	for size, who := range sizes {
		named[fmt.Sprintf("%d bytes", size)] = who
	}
	c.add(SeverityWarning, "max_payload", "the servers carry messages of different sizes: "+spread(named)+"; what fits one may be dropped by another",
		"set max_payload to one value on every NATS server")
	return nil
}

// spread says who has what.
func spread(groups map[string][]string) string {
	parts := make([]string, 0, len(groups))
	for _, key := range slices.SortedFunc(maps.Keys(groups), func(a, b string) int {
		return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
	}) {
		who := slices.Sorted(slices.Values(groups[key]))
		parts = append(parts, fmt.Sprintf("%s (%s)", cmp.Or(key, "none"), strings.Join(slices.Compact(who), ", ")))
	}
	return strings.Join(parts, ", ")
}
