package events

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
)

func TestMessage(t *testing.T) {
	long := strings.Repeat("é", maxMessage)
	if got := Message(long); len(got) > maxMessage || strings.Trim(got, "é") != "..." {
		t.Errorf("got a message of %d bytes that ends %q, want it cut off with three dots", len(got), got[len(got)-10:])
	}
	if got := Message("short"); got != "short" {
		t.Errorf("got %q", got)
	}
}

// TestSteady keeps a message whose parts come in another order, and no other one.
func TestSteady(t *testing.T) {
	const last = `Pod "a" is invalid: [spec.x: Invalid value: 1, spec.y: Required value]`
	for message, kept := range map[string]bool{
		last: true,
		`Pod "a" is invalid: [spec.y: Required value, spec.x: Invalid value: 1]`: true,
		`Pod "a" is invalid: [spec.y: Required value, spec.x: Invalid value: 2]`: false,
		`Pod "a" is invalid: [spec.y: Invalid value: 1, spec.x: Required value]`: false,
		`Pod "a" is invalid: spec.y: Required value`:                             false,
		"": false,
	} {
		want := message
		if kept {
			want = last
		}
		if got := Steady(last, message); got != want {
			t.Errorf("got %q after %q, want %q", got, message, want)
		}
	}
}

// TestSteadyFields has the messages of the API about one object with several unknown fields.
func TestSteadyFields(t *testing.T) {
	const about = "ConfigMap default/refused: failed to create typed patch object (default/refused; /v1, Kind=ConfigMap): "
	const last = about + ".wrong-3: field not declared in schema. kedge tries again later"
	if got := Steady(last, about+".wrong-4: field not declared in schema. kedge tries again later"); got != last {
		t.Errorf("got %q, want the last message", got)
	}
	if other := about + ".wrong-3: expected string, got 1. kedge tries again later"; Steady(last, other) != other {
		t.Errorf("got %q, want %q", Steady(last, other), other)
	}
}

// TestNode warns before the component runs. The Event is written when it runs.
func TestNode(t *testing.T) {
	written := make(chan corev1.Event, 2)
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var event corev1.Event
		if err := json.NewDecoder(r.Body).Decode(&event); err != nil || r.Method != http.MethodPost || r.URL.Path != "/api/v1/namespaces/"+event.Namespace+"/events" {
			t.Errorf("got request %s %s (%v), want POST of an Event in its namespace", r.Method, r.URL.Path, err)
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(event)
		written <- event
	}))
	defer api.Close()
	node := NewNode("pi", &rest.Config{Host: api.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}})
	node.Warn("a.tar: this is a FIFO")

	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(func() {
		if err := node.Run(ctx, func() {}); err != nil {
			t.Error(err)
		}
	})
	event := <-written
	if about := event.InvolvedObject; about.Kind != "Node" || about.Name != "pi" || about.UID != "pi" {
		t.Errorf("got event about %+v, want the Node pi", about)
	}
	if event.Namespace != corev1.NamespaceDefault || event.Type != corev1.EventTypeWarning || event.Reason != notUsed || event.Message != "a.tar: this is a FIFO" {
		t.Errorf("got event %s %s %q, want a warning about a.tar", event.Type, event.Reason, event.Message)
	}
	node.WarnPod("shop", "web", "1-2-3", "Reason", "message")
	event = <-written
	if about := event.InvolvedObject; about.Kind != "Pod" || about.Namespace != "shop" || about.Name != "web" || about.UID != "1-2-3" {
		t.Errorf("got event about %+v, want the pod", about)
	}
	if event.Namespace != "shop" || event.Type != corev1.EventTypeWarning || event.Reason != "Reason" || event.Message != "message" {
		t.Errorf("got event %+v", event)
	}
}
