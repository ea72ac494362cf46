package loop

import (
	"regexp"
	"strings"
	"sync"

	"github.com/sirupsen/logrus"
)

// ownAddress is the address of this end of a connection, as a net.OpError has it. Its port is
// another one each time.
var ownAddress = regexp.MustCompile(`\S+:\d+->`)

// Faults logs each fault once, and its end once. It is safe for concurrent use.
type Faults struct {
	Log *logrus.Entry
	// more follows the text.
	more string

	mu sync.Mutex
	// told is the fault that was logged, or "" if there is none.
	told string
}

// Tell logs a fault as a warning if its text is another one than before. Nil says that there is
// no fault any more.
func (f *Faults) Tell(fault error) {
	text := ""
	if fault != nil {
		text = strings.ReplaceAll(ownAddress.ReplaceAllString(fault.Error(), ""), "\n", "; ")
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if text == f.told {
		return
	}
	if text != "" {
		f.Log.Warn(text + f.more)
	} else {
		f.Log.Infof("This fault is over: %s", f.told)
	}
	f.told = text
}
