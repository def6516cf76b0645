package events

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sync"

	"github.com/apbus/apbus/module"
)

// FileOptions configures [File].
type FileOptions struct {
	// Truncate begins with an empty file instead of appending.
	Truncate bool
	// Text writes text lines instead of JSON ones.
	Text bool
	// RotateBytes renames the file to <path>.1, replacing an older one, before it
	// would grow beyond that size; 0 never does.
	RotateBytes int64
}

type file struct {
	path string
	o    FileOptions

	mu   sync.Mutex // guards the file: lines must not mix, nor a rotation with them
	f    *os.File   // nil until the first event
	size int64
}

// File writes events to a file, one line each, in mode 0600. The file is opened at
// the first event and closed with the subscription.
func File(path string, o FileOptions) Subscriber { return &file{path: path, o: o} }

func (*file) SubscriberType() string { return "file" }

// OnEvent writes a line.
func (f *file) OnEvent(_ context.Context, e module.Event) error {
	var line []byte
	var err error
	if f.o.Text {
		line, err = textLine(e)
	} else {
		line, err = json.Marshal(Envelope(e))
	}
	if err != nil {
		return Permanent(fmt.Errorf("event has no json form: %w", err))
	}
	line = append(line, '\n')
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.writeLocked(line)
}

func (f *file) writeLocked(line []byte) error {
	if f.f == nil {
		if err := f.openLocked(f.o.Truncate); err != nil {
			return err
		}
		f.o.Truncate = false // only the first time
	}
	if limit := f.o.RotateBytes; limit > 0 && f.size > 0 && f.size+int64(len(line)) > limit {
		if err := f.rotateLocked(); err != nil {
			return err
		}
	}
	n, err := f.f.Write(line)
	f.size += int64(n)
	if err != nil && n > 0 {
		// The next try must not leave half a line in the middle.
		if f.f.Truncate(f.size-int64(n)) == nil {
			f.size -= int64(n)
		}
	}
	return err
}

func (f *file) openLocked(truncate bool) error {
	flags := os.O_CREATE | os.O_WRONLY | os.O_APPEND
	if truncate {
		flags |= os.O_TRUNC
	}
	opened, err := os.OpenFile(f.path, flags, 0o600)
	if err != nil {
		return fmt.Errorf("open event file: %w", err)
	}
	info, err := opened.Stat()
	if err != nil {
		_ = opened.Close() // the stat error is the one to report
		return fmt.Errorf("open event file: %w", err)
	}
	f.f, f.size = opened, info.Size()
	return nil
}

func (f *file) rotateLocked() error {
	err := f.f.Close()
	f.f = nil
	if err != nil {
		return fmt.Errorf("rotate event file: %w", err)
	}
	if err := os.Rename(f.path, f.path+".1"); err != nil {
		return fmt.Errorf("rotate event file: %w", err)
	}
	return f.openLocked(false)
}

// Close closes the file; a later event opens it again.
func (f *file) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.f == nil {
		return nil
	}
	err := f.f.Close()
	f.f = nil
	return err
}
