package lists

import (
	"context"
	"io"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
)

// Call is a RangeStream request without a connection. serve sends the parts. The
// request ends with ctx, and with life, which is the context of the client: some
// callers stop reading without ending ctx.
func Call(ctx, life context.Context, serve func(pb.KV_RangeStreamServer) error) pb.KV_RangeStreamClient {
	parts := make(chan *pb.RangeStreamResponse)
	ctx, cancel := context.WithCancel(ctx)
	c := &client{ctx: ctx, parts: parts}
	go func() {
		defer close(parts)
		defer cancel()
		defer context.AfterFunc(life, cancel)()
		c.err = serve(&sender{ctx: ctx, parts: parts})
	}()
	return c
}

// sender is the server's end. The methods of grpc.ServerStream that are missing here
// are about metadata and messages of any type, which RangeStream does not use.
type sender struct {
	grpc.ServerStream
	ctx   context.Context
	parts chan<- *pb.RangeStreamResponse
}

// Context implements grpc.ServerStream.
func (s *sender) Context() context.Context { return s.ctx }

// Send implements pb.KV_RangeStreamServer.
func (s *sender) Send(part *pb.RangeStreamResponse) error {
	select {
	case s.parts <- part:
		return nil
	case <-s.ctx.Done():
		return s.ctx.Err()
	}
}

// client is the client's end. What is missing of grpc.ClientStream is not used.
type client struct {
	grpc.ClientStream
	ctx   context.Context
	parts <-chan *pb.RangeStreamResponse
	// err is valid when parts is closed.
	err error
}

// Context implements grpc.ClientStream.
func (c *client) Context() context.Context { return c.ctx }

// Recv implements pb.KV_RangeStreamClient.
func (c *client) Recv() (*pb.RangeStreamResponse, error) {
	if part, ok := <-c.parts; ok {
		return part, nil
	}
	if c.err != nil {
		return nil, c.err
	}
	return nil, io.EOF
}
