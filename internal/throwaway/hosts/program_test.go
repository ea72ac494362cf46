package hosts

import (
	"errors"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"
)

func TestExplain(t *testing.T) {
	for _, test := range []struct {
		cause     error
		user      int
		explained bool
	}{
		{unix.EPERM, 1000, true},
		{unix.ENOSPC, 1000, true}, // user.max_user_namespaces is reached
		{unix.EACCES, 1000, true},
		{unix.ENOMEM, 1000, false},
		{unix.EPERM, 0, false},
	} {
		err := explain(fmt.Errorf("start: %w", test.cause), test.user)
		if errors.Is(err, ErrUserNamespace) != test.explained || !errors.Is(err, test.cause) {
			t.Errorf("%v for user %d: %v", test.cause, test.user, err)
		}
	}
}
