package operator

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
)

// maxNote is the most bytes that a note is given: the API refuses an event whose note is over 1,024, and a person would
// then not hear of a failure just because its engine had much to say.
const maxNote = 1000

// noteHead is how much of the beginning is kept of a longer one. The end is kept too: an engine's last lines are there.
const noteHead = 300

// boundedRecorder cuts notes to what the API takes, for every controller alike.
type boundedRecorder struct{ events.EventRecorder }

// Eventf records an event with a note of at most maxNote bytes.
func (r boundedRecorder) Eventf(regarding, related runtime.Object, eventtype, reason, action, note string, args ...any) {
	text := fmt.Sprintf(note, args...)
	if len(text) > maxNote {
		text = strings.ToValidUTF8(text[:noteHead], "") + " … " + strings.ToValidUTF8(text[len(text)-(maxNote-noteHead):], "")
	}
	r.EventRecorder.Eventf(regarding, related, eventtype, reason, action, "%s", text)
}
