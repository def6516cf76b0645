package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"

	"github.com/apbus/apbus/module"
)

// progressBar is one line on a terminal that is drawn over itself. A nil one draws
// nothing. Safe for concurrent use.
type progressBar struct {
	w    io.Writer
	name string

	mu    sync.Mutex
	shown bool
}

const (
	barWidth = 24
	// maxNote keeps the line below the width of a small terminal, since a line that
	// wraps cannot be drawn over.
	maxNote = 24
	maxName = 20
)

// report draws how far the call is. What the terminal cannot take is left out.
func (b *progressBar) report(r module.ProgressReport) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.shown = true
	_, _ = io.WriteString(b.w, eraseLine+b.text(r))
}

// eraseLine goes back to the beginning of the line and clears it.
const eraseLine = "\r\x1b[K"

// clear takes the bar away, so that something else can be printed.
func (b *progressBar) clear() {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.shown {
		b.shown = false
		_, _ = io.WriteString(b.w, eraseLine)
	}
}

// text is the line, without its end: name, bar and share, or a count where the
// total is not known, and the note.
func (b *progressBar) text(r module.ProgressReport) string {
	var s strings.Builder
	s.WriteString(shorten(b.name, maxName))
	if r.Total > 0 {
		share := min(max(r.Done/r.Total, 0), 1)
		full := int(share * barWidth)
		fmt.Fprintf(&s, " [%s%s] %3.0f%%", strings.Repeat("=", full), strings.Repeat(" ", barWidth-full), share*100)
	} else {
		s.WriteString(" " + strconv.FormatFloat(r.Done, 'f', -1, 64))
	}
	if note := shorten(printable(r.Note), maxNote); note != "" {
		s.WriteString(" " + note)
	}
	return strings.TrimSpace(s.String())
}

// shorten cuts a text to so many characters.
func shorten(s string, most int) string {
	runes := []rune(s)
	if len(runes) <= most {
		return s
	}
	return string(runes[:most-1]) + "…"
}
