package pki

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// farOff is when the timer of watchSystemClock would end if nobody set the clock before.
const farOff = 365 * 24 * time.Hour

// watchSystemClock calls changed each time after the system's clock was set, until ctx ends. It returns nil then, and
// fails earlier if the kernel does not tell. The kernel tells it by a timer (timerfd_create(2), TFD_TIMER_CANCEL_ON_SET),
// and nothing wakes the process until then.
func watchSystemClock(ctx context.Context, changed func()) error {
	fd, err := unix.TimerfdCreate(unix.CLOCK_REALTIME, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	if err != nil {
		return fmt.Errorf("make timer: %w", err)
	}
	timer := os.NewFile(uintptr(fd), "timer")
	defer timer.Close()
	defer context.AfterFunc(ctx, func() { _ = timer.SetReadDeadline(time.Unix(1, 0)) })()
	for {
		spec := unix.ItimerSpec{Value: unix.NsecToTimespec(time.Now().Add(farOff).UnixNano())}
		if err := unix.TimerfdSettime(fd, unix.TFD_TIMER_ABSTIME|unix.TFD_TIMER_CANCEL_ON_SET, &spec, nil); err != nil {
			return fmt.Errorf("set timer: %w", err)
		}
		_, err := timer.Read(make([]byte, 8))
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.ECANCELED):
			changed()
		case err != nil:
			return fmt.Errorf("wait for timer: %w", err)
		}
	}
}
