package operator

import (
	"strings"
	"testing"
	"unicode/utf8"

	"k8s.io/client-go/tools/events"
)

func TestNotesFitTheAPI(t *testing.T) {
	for _, message := range []string{"100 % of a short one", strings.Repeat("é", 5000), "first: " + strings.Repeat("é", 5000) + " last"} {
		fake := events.NewFakeRecorder(1)
		boundedRecorder{fake}.Eventf(nil, nil, "Warning", "R", "A", "%s", message)
		note := strings.TrimPrefix(<-fake.Events, "Warning R ")
		head, tail, _ := strings.Cut(note, " … ")
		if len(note) > 1024 || !utf8.ValidString(note) || !strings.HasPrefix(message, head) || !strings.HasSuffix(message, tail) {
			t.Errorf("%d bytes became %d: %.40q", len(message), len(note), note)
		}
	}
}
