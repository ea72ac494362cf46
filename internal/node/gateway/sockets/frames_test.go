package sockets

import (
	"io"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/kedge-dev/kedge/internal/base/routing"
)

// TestFrameSize says that a frame of a megabyte follows. The gateway must not make room for it.
func TestFrameSize(t *testing.T) {
	w := newWorld(t, nil)
	c := dialTCP(t, w.open("web", routing.TCP, routing.Listener{Protocol: routing.HTTP}))
	must(t, c.SetDeadline(time.Now().Add(20*time.Second)))
	_, err := io.WriteString(c, http2.ClientPreface)
	must(t, err)
	frames := http2.NewFramer(c, c)
	must(t, frames.WriteSettings())
	const length = 1 << 20
	_, err = c.Write([]byte{length >> 16 & 0xff, length >> 8 & 0xff, length & 0xff, byte(http2.FrameData), 0, 0, 0, 0, 1})
	must(t, err)
	for {
		frame, err := frames.ReadFrame()
		must(t, err)
		switch frame := frame.(type) {
		case *http2.SettingsFrame:
			if size, ok := frame.Value(http2.SettingMaxFrameSize); ok && size != frameSize {
				t.Errorf("the gateway takes frames of %d bytes", size)
			}
		case *http2.GoAwayFrame:
			if frame.ErrCode != http2.ErrCodeFrameSize {
				t.Errorf("the gateway ends the connection with %v", frame.ErrCode)
			}
			return
		}
	}
}
