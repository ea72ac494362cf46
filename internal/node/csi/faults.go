package csi

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kedge-dev/kedge/internal/node/csi/volume"
)

// faultCodes has the codes that the CSI specification gives to the errors of the package volume.
var faultCodes = []struct {
	fault error
	code  codes.Code
}{
	{volume.ErrName, codes.InvalidArgument},
	{volume.ErrNotFound, codes.NotFound},
	{volume.ErrExists, codes.AlreadyExists},
	{volume.ErrBusy, codes.Aborted},
	{volume.ErrInUse, codes.FailedPrecondition},
	{volume.ErrNotStaged, codes.FailedPrecondition},
	{volume.ErrMissing, codes.FailedPrecondition},
	{volume.ErrImpossible, codes.FailedPrecondition},
	{volume.ErrSize, codes.OutOfRange},
	{volume.ErrNoSpace, codes.ResourceExhausted},
	{context.Canceled, codes.Canceled},
	{context.DeadlineExceeded, codes.DeadlineExceeded},
}

// fault returns err with its gRPC code.
func fault(err error) error {
	for _, f := range faultCodes {
		if errors.Is(err, f.fault) {
			return status.Error(f.code, err.Error())
		}
	}
	return status.Error(codes.Internal, err.Error())
}

func invalid(format string, args ...any) error {
	return status.Errorf(codes.InvalidArgument, format, args...)
}
