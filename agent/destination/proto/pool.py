"""The descriptor pool of our messages. The default pool refuses a second file with the same names."""

from google.protobuf import descriptor_pool, duration_pb2

POOL = descriptor_pool.DescriptorPool()
POOL.AddSerializedFile(duration_pb2.DESCRIPTOR.serialized_pb)
