package faults

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"
)

func TestTell(t *testing.T) {
	recorder := record.NewFakeRecorder(10)
	teller := Teller{Recorder: func() record.EventRecorder { return recorder }}
	fault := func(message string) Fault {
		return Fault{Object: &corev1.Service{ObjectMeta: metav1.ObjectMeta{UID: "u"}}, Reason: "Reason", Message: message}
	}
	for _, turn := range []struct {
		faults []Fault
		want   string
	}{
		{nil, ""},
		{[]Fault{fault("a"), fault("a"), fault("b")}, "Warning Reason a, Warning Reason b"},
		{[]Fault{fault("b"), fault("a")}, ""},
		{[]Fault{fault("b")}, ""},
		{[]Fault{fault("a"), fault("b")}, "Warning Reason a"},
	} {
		teller.Tell(turn.faults)
		var got []string
		for len(recorder.Events) > 0 {
			got = append(got, <-recorder.Events)
		}
		if text := strings.Join(got, ", "); text != turn.want {
			t.Errorf("of %v it tells %q, want %q", turn.faults, text, turn.want)
		}
	}
}
