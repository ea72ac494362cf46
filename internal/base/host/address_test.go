package host

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"
)

func TestAddressWatch(t *testing.T) {
	at := func(ip string) Node { return Node{Name: "pi", IPs: []netip.Addr{netip.MustParseAddr(ip)}} }
	old, other, third := at("192.0.2.1"), at("192.0.2.2"), at("192.0.2.3")
	offline := errors.New("no default route")
	type look struct {
		now  Node
		err  error
		here bool
	}
	for name, test := range map[string]struct {
		looks []look
		moved bool
	}{
		"moved":                      {[]look{{now: other}, {now: other}}, true},
		"nothing new":                {[]look{{now: old, here: true}, {now: old, here: true}}, false},
		"offline":                    {[]look{{err: offline}, {err: offline}}, false},
		"a moment without":           {[]look{{now: other}, {now: old, here: true}, {now: other}}, false},
		"not settled":                {[]look{{now: other}, {now: third}, {err: offline}}, false},
		"another route, not another": {[]look{{now: other, here: true}, {now: other, here: true}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			i := -1
			resolve := func() (Node, error) {
				if i++; i >= len(test.looks) {
					cancel()
					return Node{}, offline
				}
				return test.looks[i].now, test.looks[i].err
			}
			onHost := func(Node) (bool, error) { return i < len(test.looks) && test.looks[i].here, nil }
			err := newAddressWatch(old, resolve, onHost, time.Microsecond).Run(ctx, func() {})
			if moved := errors.Is(err, ErrMoved); moved != test.moved {
				t.Errorf("got %v", err)
			}
		})
	}
}
