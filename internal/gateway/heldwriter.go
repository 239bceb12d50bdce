package gateway

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"
)

// maxAside bounds an answer that is kept aside to be sent as one event.
const maxAside = 1 << 20

// heldWriter lets a request's answer begin, as an event stream, before it is known what becomes of it: with comments
// while it waits. An event stream of a worker then goes on in it; any other answer, an error above all, becomes one event.
// Without a heartbeat it changes nothing.
type heldWriter struct {
	http.ResponseWriter

	record *record
	stream bool
	// begun: status 200 and an event stream's headers are out.
	begun bool
	// header is what is set after that, and reaches nobody.
	header http.Header
	// aside has the answer that is no event stream, once its status came.
	aside  *bytes.Buffer
	status int
}

// streams tells whether the client reads an event stream.
func (w *heldWriter) streams() bool { return w != nil && w.stream }

// heartbeat sends a comment, and before the first one the headers. An error is the client's leaving.
func (w *heldWriter) heartbeat(comment string, deadline time.Time) error {
	control := http.NewResponseController(w.ResponseWriter)
	if !w.begun {
		h := w.ResponseWriter.Header()
		h.Set("Content-Type", "text/event-stream; charset=utf-8")
		h.Set("Cache-Control", "no-cache")
		// Proxies that buffer would keep the comments to themselves.
		h.Set("X-Accel-Buffering", "no")
		w.ResponseWriter.WriteHeader(http.StatusOK)
		w.begun, w.header = true, http.Header{}
	}
	// A writer without deadlines belongs to a server with limits of its own.
	_ = control.SetWriteDeadline(deadline)
	_, err := io.WriteString(w.ResponseWriter, comment)
	if err == nil {
		err = control.Flush()
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errClientGone, err)
	}
	_ = control.SetWriteDeadline(time.Time{}) // as above
	return nil
}

// Header returns what is to be sent, or what can no longer be.
func (w *heldWriter) Header() http.Header {
	if w.begun {
		return w.header
	}
	return w.ResponseWriter.Header()
}

// WriteHeader sends the status if none was.
func (w *heldWriter) WriteHeader(status int) {
	switch {
	case !w.begun:
		w.ResponseWriter.WriteHeader(status)
	case w.status != 0 || status < http.StatusOK:
	default:
		w.status = status
		if status != http.StatusOK || !isEventStream(w.header) {
			w.aside = &bytes.Buffer{}
		}
	}
}

// Write sends p, or keeps it for finish.
func (w *heldWriter) Write(p []byte) (int, error) {
	if w.begun && w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	if w.aside == nil {
		return w.ResponseWriter.Write(p)
	}
	if room := maxAside - w.aside.Len(); len(p) > room {
		return 0, io.ErrShortBuffer
	}
	return w.aside.Write(p)
}

// Unwrap is for http.ResponseController.
func (w *heldWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// finish sends the answer that was kept aside, as an event. An error ends the stream: no [DONE] follows it.
func (w *heldWriter) finish() {
	if w.aside == nil {
		return
	}
	if w.status == statusClientGone {
		w.record.status = statusClientGone
		return
	}
	text := w.aside.Bytes()
	var compact bytes.Buffer
	if json.Compact(&compact, text) == nil && compact.Len() > 0 {
		text = append(append([]byte("data: "), compact.Bytes()...), "\n\n"...)
	} else {
		text = event(&apiError{Type: typeServer, Code: "worker_error", Message: fmt.Sprintf("The worker answered with status %d.", w.status)})
	}
	if w.status != http.StatusOK {
		w.record.broken = w.code()
	} else {
		text = append(text, "data: [DONE]\n\n"...)
	}
	// A client that went away is its own affair.
	_, _ = w.ResponseWriter.Write(text)
	_ = http.NewResponseController(w.ResponseWriter).Flush()
}

// code is the error's, as the log and the metrics have it: an engine's own words are no label.
func (w *heldWriter) code() string {
	var own struct {
		Error struct {
			Code string `json:"code"`
		} `json:"error"`
	}
	if json.Unmarshal(w.aside.Bytes(), &own) == nil {
		switch own.Error.Code {
		case "model_not_ready", "model_not_found", "worker_lost", "worker_busy", "worker_unreachable", "too_many_waiting",
			codeShuttingDown:
			return own.Error.Code
		}
	}
	return "worker_error"
}
