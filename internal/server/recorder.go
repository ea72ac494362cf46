package server

import (
	"context"
	"math"
	"strings"
	"time"

	"github.com/kedge-dev/kedge/internal/base/component"
	"github.com/kedge-dev/kedge/internal/base/recording"
	"github.com/kedge-dev/kedge/internal/controlplane/moments"
	"github.com/kedge-dev/kedge/internal/node/recorder"
)

// statsTimeout is how long the datastore may take to tell what it counts.
const statsTimeout = time.Second

// curves are those that a server records, besides the curves of its node.
func (s *server) curves() []recorder.Source {
	sources := []recorder.Source{counted(
		recording.Curve{Name: "commits", Title: "commits of the datastore", Unit: "/s"},
		recording.Curve{Name: "commit-latency", Title: "time of a commit", Unit: "ms", Peak: true},
		func() (count int64, took time.Duration) {
			ctx, cancel := context.WithTimeout(context.Background(), statsTimeout)
			defer cancel()
			commits := s.store.Stats(ctx).Commits
			if commits == nil {
				return 0, 0
			}
			return int64(commits.Latency().Count), commits.Sum
		},
	)}
	if s.roles.api {
		sources = append(sources, counted(
			recording.Curve{Name: "requests", Title: "requests to the API", Unit: "/s"},
			recording.Curve{Name: "request-latency", Title: "time of a request", Unit: "ms", Peak: true},
			func() (int64, time.Duration) { return s.api.server.Answered() },
		))
	}
	return sources
}

// counted makes curves of how often something happens, and how long it takes.
func counted(often, long recording.Curve, read func() (count int64, took time.Duration)) recorder.Source {
	rate, mean := recorder.NewRate(), &recorder.Mean{}
	return recorder.Source{
		Curves: []recording.Curve{often, long},
		Read: func(elapsed time.Duration, values []float64) []recording.Moment {
			count, took := read()
			values[0] = rate.Of(float64(count), elapsed)
			values[1] = mean.Of(float64(count), float64(took)/float64(time.Millisecond))
			if elapsed == 0 {
				values[1] = math.NaN() // since the start
			}
			return nil
		},
	}
}

// moments brings what happens in the cluster into the recording of this server.
func (s *server) moments() component.Component {
	return moments.New(s.api.ClientConfig(moments.User), s.recorder.Note)
}

// noteLeader records which server is elected.
func (s *server) noteLeader(identity string) {
	name, _, _ := strings.Cut(identity, "_")
	s.recorder.Note(recording.Moment{At: time.Now(), Kind: "election", Text: "Server " + name + " runs the controllers and the scheduler"})
}
