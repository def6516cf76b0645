package bus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/apbus/apbus/module"
)

// DoctorOptions says what [Diagnose] looks at. The zero value is valid.
type DoctorOptions struct {
	// Namespace is "default" when empty.
	Namespace string
	// Role is whose permissions are looked at; RoleRouter when empty.
	Role Role
	// Server, when set, is looked into: who listens to what is known exactly there,
	// and only guessed from outside.
	Server *Embedded
}

// Role is what a process is to the bus.
type Role string

const (
	// RoleRouter calls, checks, cancels and reads the catalogue, as every client does.
	RoleRouter Role = "router"
	// RoleNode hosts modules, and calls as well.
	RoleNode Role = "node"
)

// Severity says how bad a [Finding] is.
type Severity string

const (
	// SeverityError is what makes calls fail or run twice.
	SeverityError Severity = "error"
	// SeverityWarning is what may, or makes them slower to fail.
	SeverityWarning Severity = "warning"
)

// Finding is one thing that is wrong, and how it is mended.
type Finding struct {
	Severity Severity
	// What names the thing: a stream, a subject, a node.
	What string
	// Problem says what it does, Mend what to do about it.
	Problem, Mend string
}

// CheckState says how a [HealthCheck] went.
type CheckState string

const (
	// CheckOK found nothing.
	CheckOK CheckState = "ok"
	// CheckFound found something.
	CheckFound CheckState = "found"
	// CheckSkipped could not look; Note says why.
	CheckSkipped CheckState = "skipped"
)

// HealthCheck is one thing that [Diagnose] looked at.
type HealthCheck struct {
	// Name is permissions, jetstream, stream_overlap, wildcard_listener, queue_groups,
	// catalogue, clock_skew, versions or max_payload.
	Name  string
	State CheckState
	// Note says why nothing was looked at, or how far it could be seen.
	Note     string
	Findings []Finding
}

// doctor is one examination.
type doctor struct {
	nc       *nats.Conn
	js       jetstream.JetStream // nil without JetStream
	subjects subjects
	server   *Embedded
	role     Role
	forbid   map[string]bool // subjects that may not be published to
	records  []storedRecord
	noRecord string // why there are none
}

// doctorPatience is how long one question may take.
const doctorPatience = 2 * time.Second

// Diagnose looks for the usual misconfigurations of a bus over a connection of its
// own and says how to mend them. It changes nothing; what it publishes reaches no
// module. Most of it can be seen with any connection; who else listens to the
// subjects of calls is only guessed without a server to look into. A bus that cannot
// be reached is BUS_DISCONNECTED.
func Diagnose(ctx context.Context, o Options, d DoctorOptions) ([]HealthCheck, error) {
	s, err := newSubjects(o.Prefix, d.Namespace)
	if err != nil {
		return nil, module.Errorf(module.CodeConfigInvalid, "doctor: %w", err)
	}
	if d.Role == "" {
		d.Role = RoleRouter
	}
	if d.Role != RoleRouter && d.Role != RoleNode {
		return nil, module.Errorf(module.CodeInvalidInput, "doctor: role %q is neither %s nor %s", d.Role, RoleRouter, RoleNode)
	}
	opts := append(NewConns(nil, nil, nil, o).natsOptions(o, "doctor"),
		// What may not be done is what is looked for, not an event to be logged.
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}),
	)
	nc, err := nats.Connect(serverList(o), opts...)
	if err != nil {
		return nil, module.Errorf(module.CodeBusDisconnected, "cannot connect to NATS: %w", err)
	}
	defer nc.Close()
	doc := &doctor{nc: nc, subjects: s, server: d.Server, role: d.Role, forbid: map[string]bool{}}
	var checks []HealthCheck
	for _, c := range []struct {
		name string
		look func(ctx context.Context, c *HealthCheck) error
	}{
		{"permissions", doc.permissions},
		{"jetstream", doc.jetStream},
		{"stream_overlap", doc.streams},
		{"wildcard_listener", doc.listeners},
		{"queue_groups", doc.queueGroups},
		{"catalogue", doc.catalogue},
		{"clock_skew", doc.clocks},
		{"versions", doc.versions},
		{"max_payload", doc.payloads},
	} {
		check := HealthCheck{Name: c.name, State: CheckOK}
		if err := c.look(ctx, &check); err != nil {
			if ctx.Err() != nil {
				return nil, fmt.Errorf("doctor: %w", context.Cause(ctx))
			}
			check.skip(err.Error())
		}
		checks = append(checks, check)
	}
	return checks, nil
}

func (c *HealthCheck) add(severity Severity, what, problem, mend string) {
	c.State = CheckFound
	c.Findings = append(c.Findings, Finding{severity, what, problem, mend})
}

// skip notes why there was nothing to see. What was found stays.
func (c *HealthCheck) skip(why string) {
	c.Note = why
	if len(c.Findings) == 0 {
		c.State = CheckSkipped
	}
}

// within bounds one question.
func (*doctor) within(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, doctorPatience, errors.New("no answer to a question of the doctor"))
}

// nobody is a name that no node and no module has.
const nobody = "doctor_asks_for_nobody"

// nobodyModule is nobody as a module ID.
const nobodyModule = nobody + ".x"
