package gateway

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
)

// eventStream passes server-sent events on unchanged and, when they end without [DONE], adds an error event, so that a
// broken answer never looks like a whole one.
type eventStream struct {
	body io.ReadCloser
	// ended gives the last words for a stream that ended early; nil means to fail with the error instead.
	ended func(err error) *apiError
	// came is called with the number of events that a read brought, left once, when the stream is over or left alone.
	came func(events int64)
	left func(*lineWatch)

	lines lineWatch
	over  bool
	rest  []byte
}

// Read returns what the worker sent as soon as it is there.
func (s *eventStream) Read(p []byte) (int, error) {
	if s.over {
		n := copy(p, s.rest)
		s.rest = s.rest[n:]
		if n == 0 && len(p) > 0 {
			return 0, io.EOF
		}
		return n, nil
	}
	n, err := s.body.Read(p)
	before := s.lines.events
	s.lines.watch(p[:n])
	if events := s.lines.events - before; events > 0 {
		s.came(events)
	}
	if err == nil {
		return n, nil
	}
	s.over = true
	// After [DONE] the answer is whole, however its connection ends.
	if s.lines.finished() {
		return n, nil
	}
	words := s.ended(err)
	if words == nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return n, err
	}
	s.rest = append(s.lines.boundary(), event(words)...)
	return n, nil
}

// Close ends the worker's answer.
func (s *eventStream) Close() error {
	if s.left != nil {
		s.left(&s.lines)
		s.left = nil
	}
	return s.body.Close()
}

func event(e *apiError) []byte {
	text, err := json.Marshal(e.body())
	if err != nil { // It cannot fail: strings only.
		text = []byte(`{"error":{"message":"stream broken","type":"server_error","param":null,"code":null}}`)
	}
	return append(append([]byte("data: "), text...), "\n\n"...)
}

// lineWatch follows a stream's lines as far as it must to know whether [DONE] came, whether an event is open, and what
// the usage was.
type lineWatch struct {
	// line is the beginning of the current line as far as earlier reads had it, long that there was more of it than is
	// kept.
	line []byte
	long bool
	// blank: the last whole line was empty, so that no event is open.
	blank bool
	done  bool

	// events with data, without [DONE]. usage is the latest line that mentions one.
	events int64
	usage  []byte
}

// maxWatched is more than an event with a usage in it.
const maxWatched = 16 << 10

func (w *lineWatch) watch(p []byte) {
	for len(p) > 0 {
		end := bytes.IndexByte(p, '\n')
		if end < 0 {
			w.keep(p)
			return
		}
		line := p[:end]
		if len(w.line) > 0 {
			w.keep(line)
			line = w.line
		}
		w.whole(line)
		w.line, w.long = w.line[:0], false
		p = p[end+1:]
	}
}

func (w *lineWatch) keep(part []byte) {
	if room := maxWatched - len(w.line); len(part) > room {
		w.long = true
		part = part[:room]
	}
	w.line = append(w.line, part...)
}

var dataField = []byte("data:")

// whole notes a line without its end.
func (w *lineWatch) whole(line []byte) {
	w.blank = len(bytes.TrimRight(line, "\r")) == 0
	if w.blank || !bytes.HasPrefix(line, dataField) {
		return
	}
	if w.isDone(line) {
		w.done = true
		return
	}
	w.events++
	if !w.long && bytes.Contains(line, usageKey) {
		w.usage = append(w.usage[:0], line...)
	}
}

func (w *lineWatch) isDone(line []byte) bool {
	data, ok := bytes.CutPrefix(line, dataField)
	return ok && !w.long && string(bytes.TrimSpace(data)) == "[DONE]"
}

func (w *lineWatch) finished() bool { return w.done || w.isDone(w.line) }

// boundary is what closes an event that is open. Half an event cannot be taken back: a client that parses it fails,
// which is what it should do.
func (w *lineWatch) boundary() []byte {
	switch {
	case len(w.line) > 0:
		return []byte("\n\n")
	case !w.blank:
		return []byte("\n")
	}
	return nil
}
